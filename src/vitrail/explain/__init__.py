"""Explanations of a model's inner workings: tensors in, tensors out. Drawing and serving them is done elsewhere."""

from vitrail.explain.ablate import ablate as ablate
from vitrail.explain.attention import attention as attention
from vitrail.explain.attention import pooled_attention as pooled_attention
from vitrail.explain.attention import reading as reading
from vitrail.explain.distance import distance as distance
from vitrail.explain.distance import heads as heads
from vitrail.explain.distance import norms as norms
from vitrail.explain.faithfulness import faithfulness as faithfulness
from vitrail.explain.gradient import gradcam as gradcam
from vitrail.explain.gradient import gradient_rollout as gradient_rollout
from vitrail.explain.gradient import integrated as integrated
from vitrail.explain.gradient import lens as lens
from vitrail.explain.gradient import relevance as relevance
from vitrail.explain.maps import saliency as saliency
from vitrail.explain.rollout import rollout as rollout
from vitrail.explain.similarity import filters as filters
from vitrail.explain.similarity import position_similarity as position_similarity
from vitrail.explain.trace import trace as trace
