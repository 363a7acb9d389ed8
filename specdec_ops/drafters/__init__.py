"""Where drafts come from."""

from specdec_ops.drafters.base import Draft, Drafter
from specdec_ops.drafters.draft_model import DraftModel, DraftTree
from specdec_ops.drafters.medusa import MedusaHeads
from specdec_ops.drafters.prompt_lookup import PromptLookup

__all__ = ["Draft", "DraftModel", "DraftTree", "Drafter", "MedusaHeads", "PromptLookup"]
