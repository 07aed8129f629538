"""The web application: what is common to its pages. The pages themselves are in ``app.routes``."""
