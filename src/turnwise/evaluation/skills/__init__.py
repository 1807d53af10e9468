"""Eight toy skills that measure what a policy forgets during training, one for each out-of-domain benchmark of PivotRL
(arXiv:2603.21383).

The skills are made for tiny models. A score on a skill is not a score on the benchmark.
"""

from turnwise.evaluation.skills.all_skills import SKILLS, items
from turnwise.evaluation.skills.skill import Item, Skill, Split, stream

__all__ = ["SKILLS", "Item", "Skill", "Split", "items", "stream"]
