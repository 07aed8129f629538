from trainer.config.models import CONFIGS, GrpoConfig
from trainer.config.schema import sections
from trainer.config.suggest import FOREIGN_NAMES


def test_sections_are_listed_in_the_order_of_the_file():
    names = [info.name for info in sections(GrpoConfig)]
    assert names[:4] == ["", "run", "model", "output"]
    assert names.count("grpo.judge") == 2
    assert names.index("grpo") < names.index("grpo.sampling")


def test_every_foreign_name_leads_to_a_key_that_exists():
    known = {
        f"{info.name}.{key}"
        for config in CONFIGS.values()
        for info in sections(config)
        for key in info.keys
    }
    assert set(FOREIGN_NAMES.values()) <= known
