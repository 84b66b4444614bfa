//! Which spans are exported. A trace begins with work that somebody asked for: what the program does by itself, such as
//! its polls, and what probes ask, would be all that is seen.

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanContext, SpanKind, TraceContextExt as _, TraceId},
};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

use super::conventions;
use domain::config::{RootSampler, Traces};

/// Keeps of the spans that may begin a trace those that the settings say, and of others those whose parent is kept.
#[derive(Clone, Debug)]
pub(super) struct WorkSampler(Sampler);

impl WorkSampler {
    pub(super) fn new(settings: &Traces) -> Self {
        let root = match settings.sampler.root {
            RootSampler::AlwaysOn => Sampler::AlwaysOn,
            RootSampler::AlwaysOff => Sampler::AlwaysOff,
            RootSampler::Ratio => Sampler::TraceIdRatioBased(settings.ratio),
        };
        Self(if settings.sampler.is_parent_based {
            Sampler::ParentBased(Box::new(root))
        } else {
            root
        })
    }
}

impl ShouldSample for WorkSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let given = parent.map(|parent| parent.span().span_context().clone());
        let given = given.filter(SpanContext::is_valid);
        let is_kept = match &given {
            Some(parent) if !parent.is_remote() => parent.is_sampled(),
            _ if conventions::may_begin(name, attributes) => {
                let sampler = &self.0;
                return sampler.should_sample(parent, trace, name, kind, attributes, links);
            }
            _ => false,
        };
        SamplingResult {
            decision: if is_kept {
                SamplingDecision::RecordAndSample
            } else {
                SamplingDecision::Drop
            },
            attributes: Vec::new(),
            trace_state: given.map_or_else(Default::default, |parent| parent.trace_state().clone()),
        }
    }
}
