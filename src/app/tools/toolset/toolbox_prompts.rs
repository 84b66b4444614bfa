//! Prompts that a toolbox comes with. They have no access rules of their own, so the tools' rules decide
//! ([`offers_prompts`]).

use std::{collections::HashMap, sync::Arc};

use super::Toolbox;
use crate::domain::{
    names::{self, Candidate},
    policy::{Standing, offers_prompts},
    prompt::ServerPrompt,
    server::ServerSpec,
};

impl Toolbox {
    /// The prompts that the principal may use with their servers, in the pack's order.
    pub fn prompts(&self) -> impl Iterator<Item = (&Arc<ServerSpec>, &Arc<ServerPrompt>)> {
        let servers = self
            .all
            .specs
            .iter()
            .zip(&self.all.catalogs)
            .zip(&self.usable);
        let offering = servers.filter_map(|((spec, catalog), usable)| {
            let catalog = catalog.as_deref().filter(|_| *usable)?;
            let tools = catalog.tools.iter().map(|tool| tool.name.as_str());
            offers_prompts(spec, &self.access, tools).then_some((spec, catalog))
        });
        offering
            .flat_map(|(spec, catalog)| catalog.prompts.iter().map(move |prompt| (spec, prompt)))
    }

    /// The same with names for clients: `<server>__<prompt>` as for tools, or the server's own where `own_names` says so
    /// and no other server of the agent has the same.
    pub fn named_prompts(
        &self,
        own_names: bool,
    ) -> Vec<(String, &Arc<ServerSpec>, &Arc<ServerPrompt>)> {
        // All prompts of the agent, so that a user's rights change no name.
        let all = self.all.specs.iter().zip(&self.all.catalogs);
        let all = all.flat_map(|(spec, catalog)| {
            let prompts = catalog.iter().flat_map(|catalog| &catalog.prompts);
            prompts.map(move |prompt| (spec.id.as_str(), prompt.name.as_str()))
        });
        let candidates = all.clone().map(|(server, tool)| Candidate {
            server,
            tool,
            standing: Standing::Unnamed,
        });
        let names = names::assign(candidates);
        let names: HashMap<_, _> = all.clone().zip(names).collect();
        let is_unique = |name: &str| all.clone().filter(|(_, other)| *other == name).count() == 1;
        let named = self.prompts().map(|(spec, prompt)| {
            let name = if own_names && is_unique(&prompt.name) {
                prompt.name.clone()
            } else {
                names[&(spec.id.as_str(), prompt.name.as_str())].clone()
            };
            (name, spec, prompt)
        });
        named.collect()
    }

    /// One of them, by its name or as a command spells it; `None` also when a spelling means several.
    pub fn prompt(
        &self,
        server: &str,
        name: &str,
    ) -> Option<(&Arc<ServerSpec>, &Arc<ServerPrompt>)> {
        let of_server = || {
            self.prompts()
                .filter(|(spec, _)| spec.id.as_str().eq_ignore_ascii_case(server))
        };
        of_server()
            .find(|(_, prompt)| prompt.name == name)
            .or_else(|| {
                let mut spelt = of_server()
                    .filter(|(_, prompt)| crate::domain::prompt::word(&prompt.name) == name);
                spelt.next().filter(|_| spelt.next().is_none())
            })
    }
}
