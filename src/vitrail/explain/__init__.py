"""Explanations of a model's inner workings: tensors in, tensors out. Drawing and serving them is done elsewhere."""

from vitrail.explain.ablate import ablate as ablate
from vitrail.explain.attention import attention as attention
from vitrail.explain.attention import pooled_attention as pooled_attention
from vitrail.explain.attention import pooling_weights as pooling_weights
from vitrail.explain.box import box_classifier as box_classifier
from vitrail.explain.embeddings import patch_filters as patch_filters
from vitrail.explain.embeddings import position_similarity as position_similarity
from vitrail.explain.faithfulness import faithfulness as faithfulness
from vitrail.explain.gradient import gradcam as gradcam
from vitrail.explain.gradient import gradient_rollout as gradient_rollout
from vitrail.explain.gradient import integrated_gradients as integrated_gradients
from vitrail.explain.gradient import logit_lens as logit_lens
from vitrail.explain.gradient import relevance as relevance
from vitrail.explain.head_statistics import attention_distance as attention_distance
from vitrail.explain.head_statistics import head_statistics as head_statistics
from vitrail.explain.head_statistics import token_norms as token_norms
from vitrail.explain.module_trace import trace_modules as trace_modules
from vitrail.explain.region import region_classifier as region_classifier
from vitrail.explain.rollout import rollout as rollout
from vitrail.explain.saliency import saliency as saliency
