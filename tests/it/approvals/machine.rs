//! Whatever people, executors, the sweep and the clock do to requests, in whatever order and two at a time: what the
//! program's functions answer and what is in Postgres afterwards is what a model in memory says.
//!
//! Two actions at once have two right outcomes, one for each order, so this is not a machine with one next state.
//! The steps are the same in every run; `PROPTEST_RNG_SEED` chooses others and `PROPTEST_CASES` more of them.

mod model;
mod program; // the real thing // what it should do

use std::{cell::RefCell, collections::BTreeSet};

use domain::{
    approval::{Choice, State},
    config::Environment,
    message::CallStatus,
};
use proptest::{
    prelude::*,
    test_runner::{RngSeed, TestRunner},
};

use self::{
    model::{Action, Answer, Call, Held, Model, Request},
    program::{Program, RealRequests, Seen},
};

const CASES: u32 = 16;
const STEPS: std::ops::RangeInclusive<usize> = 30..=60;
/// Which steps are taken unless somebody asks for others.
const SEED: u64 = 4;
/// Open requests that there may be.
const OF_USER: usize = 3;
const OF_TENANT: usize = 5;

struct Person {
    name: &'static str,
    roles: &'static [&'static str],
}

const PEOPLE: [Person; 5] = [
    Person {
        name: "ann",
        roles: &[],
    },
    Person {
        name: "bob",
        roles: &["manager"],
    },
    Person {
        name: "carl",
        roles: &["cfo"],
    },
    Person {
        name: "dora",
        roles: &["clerk", "manager"],
    },
    Person {
        name: "fred",
        roles: &["clerk"],
    },
];

impl Person {
    fn may(&self, tool: usize) -> bool {
        self.roles
            .iter()
            .any(|role| TOOLS[tool].approvers.contains(role))
    }
}

struct Policy {
    name: &'static str,
    approvers: &'static [&'static str],
    /// How many have to approve, and whether the requester may be one of them.
    lenient: (usize, bool),
    strict: (usize, bool),
}

const TOOLS: [Policy; 3] = [
    Policy {
        name: "lend",
        approvers: &["manager", "cfo"],
        lenient: (1, false),
        strict: (2, true),
    },
    Policy {
        name: "send",
        approvers: &["manager", "cfo", "clerk"],
        lenient: (2, false),
        strict: (2, false),
    },
    Policy {
        name: "sell",
        approvers: &["manager", "cfo", "clerk"],
        lenient: (3, true),
        strict: (3, false),
    },
];

impl Policy {
    fn consent(&self, strict: bool) -> (usize, bool) {
        if strict { self.strict } else { self.lenient }
    }
}

/// The tool of which a sum is limited, for all people together: more than `ASKS` wants the consent `TIER`, and more than
/// `DENIES` is denied.
const LIMITED: usize = 0;
const ASKS: usize = 1;
const TIER: (usize, bool) = (2, false);
const DENIES: usize = 2;

/// The bank that they work for. Its server is not asked for anything.
fn pack(strict: bool) -> String {
    let consent = |tool: &Policy, (least, own): (usize, bool)| {
        let approvers = tool.approvers.join(", ");
        format!("approvers: [{approvers}], minApprovals: {least}, selfApproval: {own}")
    };
    let policy = |tool: &Policy| {
        let consent = consent(tool, tool.consent(strict));
        format!("{{ tools: [{}], {consent} }}", tool.name)
    };
    let limited = &TOOLS[LIMITED];
    let sum = format!(
        "tools: [{}], sum: args.amount, per: tenant, over: 30d",
        limited.name
    );
    let limits = format!(
        "{{ {sum}, most: {ASKS}, then: approve, {} }}, {{ {sum}, most: {DENIES}, then: deny }}",
        consent(limited, TIER)
    );
    format!(
        r#"
metadata: {{ id: bank, displayName: Bank, description: Money, defaultLanguage: en }}
languages: {{ en: {{ systemPrompt: "You are a bank." }} }}
llm: {{ provider: openai, model: none, baseUrl: "http://127.0.0.1:9/v1", apiKey: model-key-0123456789 }}
flows: {{ authentication: {{ required: false, rolesAttribute: roles }} }}
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "http://127.0.0.1:9/mcp"
      toolAccess: {{ default: none, roles: {{ employee: [lend, send, sell] }}, approval: [{}], limits: [{limits}] }}
"#,
        TOOLS.iter().map(policy).collect::<Vec<_>>().join(", ")
    )
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Call),
    /// The pack changes.
    Strict(bool),
    /// All of it at once, to the request that is so many before the last one.
    Do(usize, Vec<Action>),
    /// The same, choosing from what is likely in the state that it is in.
    Likely(usize, Vec<prop::sample::Index>),
}

/// A life, some of them from where chance alone comes too seldom.
fn life() -> impl Strategy<Value = Vec<Step>> {
    let one = |action| Step::Do(0, vec![action]);
    let approve = Action::Decide {
        by: 1,
        choice: Choice::Approve,
        right_hash: true,
    };
    let ask = Step::Ask(Call {
        by: 0,
        tool: 0,
        amount: 0,
    });
    let outdated = vec![ask.clone(), Step::Strict(true), one(approve)];
    let approved = vec![ask, one(approve)];
    let too_late = |held| Action::Hold(1, held);
    let lost = [
        Action::Claim,
        Action::LeaseOver,
        Action::Claim,
        too_late(Held::Start),
    ]
    .map(one);
    let lost = [approved.clone(), lost.to_vec()].concat();
    let started = [
        Action::Hold(0, Held::Start),
        too_late(Held::Finish(CallStatus::Succeeded)),
    ]
    .map(one);
    let started = [lost.clone(), started.to_vec()].concat();
    let begun = prop_oneof![
        2 => Just(limited()),
        1 => Just(Vec::new()),
        1 => Just(outdated),
        1 => Just(approved),
        1 => Just(lost),
        2 => Just(started),
    ];
    (begun, prop::collection::vec(step(), STEPS)).prop_map(|(begun, then)| [begun, then].concat())
}

/// Fills the sum: one call as any other, two that its tier asks about, of which one is too much when it begins, a third
/// that is too much when it is voted on, and one that is denied at once. Then the time of the limit passes.
fn limited() -> Vec<Step> {
    let ask = |by| {
        Step::Ask(Call {
            by,
            tool: LIMITED,
            amount: 1,
        })
    };
    let one = |back, action| Step::Do(back, vec![action]);
    let approve = |back, by| {
        let (choice, right_hash) = (Choice::Approve, true);
        one(
            back,
            Action::Decide {
                by,
                choice,
                right_hash,
            },
        )
    };
    let start = |back| {
        [
            one(back, Action::Claim),
            one(back, Action::Hold(0, Held::Start)),
        ]
    };
    let finish = one(0, Action::Hold(0, Held::Finish(CallStatus::Succeeded)));
    [
        vec![ask(0), approve(0, 1)],
        start(0).to_vec(),
        vec![finish, ask(0), ask(3), ask(1)],
        vec![approve(2, 1), approve(2, 2), approve(1, 1), approve(1, 2)],
        start(2).to_vec(),
        start(1).to_vec(),
        vec![approve(0, 2), ask(2), one(0, Action::LimitOver), ask(2)],
    ]
    .concat()
}

fn step() -> impl Strategy<Value = Step> {
    let call = (0..4_usize, 0..TOOLS.len(), 0..2_usize).prop_map(|(by, tool, amount)| Call {
        by,
        tool,
        amount,
    });
    let which = || prop_oneof![3 => Just(0_usize), 2 => Just(1), 1 => 2..6_usize];
    let choice = || any::<prop::sample::Index>();
    prop_oneof![
        8 => call.prop_map(Step::Ask),
        2 => any::<bool>().prop_map(Step::Strict),
        20 => (which(), choice()).prop_map(|(at, one)| Step::Likely(at, vec![one])),
        9 => (which(), choice(), choice()).prop_map(|(at, one, two)| Step::Likely(at, vec![one, two])),
        6 => (which(), action()).prop_map(|(at, action)| Step::Do(at, vec![action])),
        3 => (which(), action(), action()).prop_map(|(at, one, two)| Step::Do(at, vec![one, two])),
    ]
}

/// What happens to requests in such a state.
#[expect(clippy::too_many_lines, reason = "a table")]
fn likely(request: &Request) -> Vec<Action> {
    let newest = |held| Action::Hold(0, held);
    // Of one who lost the lease to another.
    let stale = |held: &[Held]| {
        held.iter()
            .filter(|_| request.fence > 1)
            .map(|held| Action::Hold(1, *held))
            .collect()
    };
    match request.state {
        State::Pending => {
            let decide = |by, choice| Action::Decide {
                by,
                choice,
                right_hash: true,
            };
            let by = PEOPLE
                .iter()
                .position(|person| person.name == request.requester)
                .unwrap();
            let tool = TOOLS
                .iter()
                .position(|tool| tool.name == request.tool)
                .unwrap();
            let wanted =
                |by: &usize| PEOPLE[*by].may(tool) && !request.votes.contains_key(PEOPLE[*by].name);
            let approve: Vec<_> = (0..PEOPLE.len())
                .filter(wanted)
                .map(|by| decide(by, Choice::Approve))
                .collect();
            let rest = [
                decide(2, Choice::Reject),
                Action::Cancel { by },
                Action::Overdue,
                Action::Expire,
            ];
            [approve.clone(), approve, rest.to_vec()].concat()
        }
        State::Approved => {
            let claimed = request.lease_over == Some(false);
            let often = if claimed {
                newest(Held::Start)
            } else {
                Action::Claim
            };
            let holds = [Held::Revoke, Held::Revoke, Held::PutOff].map(newest);
            let clock = [
                Action::WindowOver,
                Action::LeaseOver,
                Action::LeaseOver,
                Action::LeaseOver,
                Action::Lapse,
            ];
            let late = if request.window_over == Some(true) {
                vec![Action::LeaseOver, Action::Lapse, Action::Lapse]
            } else {
                vec![]
            };
            [
                vec![often; 4],
                holds.to_vec(),
                clock.to_vec(),
                late,
                stale(&[
                    Held::Start,
                    Held::Start,
                    Held::Revoke,
                    Held::Revoke,
                    Held::Beat,
                ]),
            ]
            .concat()
        }
        State::Executing => {
            let ends = [
                CallStatus::Succeeded,
                CallStatus::Failed,
                CallStatus::OutcomeUnknown,
            ]
            .map(Held::Finish);
            let rest = [
                Action::LeaseOver,
                Action::GiveUp,
                Action::GiveUp,
                newest(Held::Start),
            ];
            [
                vec![newest(ends[0])],
                ends.map(newest).to_vec(),
                rest.to_vec(),
                stale(&ends),
            ]
            .concat()
        }
        State::OutcomeUnknown => {
            let record = (0..PEOPLE.len()).map(|by| Action::Record {
                by,
                happened: by % 2 == 0,
            });
            record
                .chain([newest(Held::Finish(CallStatus::Succeeded)), Action::Claim])
                .collect()
        }
        _ => {
            vec![
                Action::Claim,
                newest(Held::Start),
                newest(Held::Finish(CallStatus::Failed)),
                Action::Expire,
                Action::Lapse,
            ]
        }
    }
}

/// The step as the state of its request makes it.
fn settled(model: &Model, step: &Step) -> Step {
    match step {
        Step::Likely(back, choices) if !model.requests.is_empty() => {
            let last = model.requests.len() - 1;
            let alive = |back: &usize| {
                let request = &model.requests[last - back];
                request.state.is_open()
                    || request.state == State::OutcomeUnknown && request.recorded_by.is_none()
            };
            let alive: Vec<usize> = (0..=last).filter(alive).collect();
            let back = if alive.is_empty() {
                *back
            } else {
                alive[back % alive.len()]
            };
            let actions = likely(&model.requests[chosen(model, back)]);
            Step::Do(
                back,
                choices.iter().map(|choice| *choice.get(&actions)).collect(),
            )
        }
        Step::Likely(back, _) => Step::Do(*back, Vec::new()),
        step => step.clone(),
    }
}

fn action() -> impl Strategy<Value = Action> {
    let by = || 0..PEOPLE.len();
    let choice = prop_oneof![6 => Just(Choice::Approve), 1 => Just(Choice::Reject)];
    let decide = (by(), choice, prop::bool::weighted(0.95));
    let status = prop_oneof![
        Just(CallStatus::Succeeded),
        Just(CallStatus::Failed),
        Just(CallStatus::OutcomeUnknown)
    ];
    let held = prop_oneof![
        6 => Just(Held::Start),
        5 => status.prop_map(Held::Finish),
        1 => Just(Held::Beat),
        1 => Just(Held::Revoke),
        1 => Just(Held::PutOff),
    ];
    let back = prop_oneof![4 => Just(0_usize), 1 => Just(1)];
    prop_oneof![
        16 => decide.prop_map(|(by, choice, right_hash)| Action::Decide { by, choice, right_hash }),
        1 => by().prop_map(|by| Action::Cancel { by }),
        3 => (by(), any::<bool>()).prop_map(|(by, happened)| Action::Record { by, happened }),
        7 => Just(Action::Claim),
        12 => (back, held).prop_map(|(back, held)| Action::Hold(back, held)),
        1 => Just(Action::Expire),
        2 => Just(Action::Lapse),
        3 => Just(Action::GiveUp),
        1 => Just(Action::Overdue),
        1 => Just(Action::WindowOver),
        2 => Just(Action::LeaseOver),
        1 => Just(Action::LimitOver),
    ]
}

/// Takes a step in the model, in each of the orders that are right.
fn foretold(model: &Model, step: &Step) -> Vec<(Model, Vec<Answer>)> {
    let mut next = model.clone();
    match step {
        Step::Ask(call) => {
            let answer = next.ask(*call);
            vec![(next, vec![answer])]
        }
        Step::Strict(strict) => {
            next.strict = *strict;
            vec![(next, Vec::new())]
        }
        Step::Do(..) | Step::Likely(..) if model.requests.is_empty() => vec![(next, Vec::new())],
        Step::Likely(..) => unreachable!("a step is settled before it is taken"),
        Step::Do(back, actions) => {
            let at = chosen(model, *back);
            let newest = model.requests[at].fence;
            let in_order = |actions: &mut dyn Iterator<Item = &Action>| {
                let mut next = model.clone();
                let answers: Vec<Answer> = actions
                    .map(|action| next.act(at, *action, newest))
                    .collect();
                (next, answers)
            };
            let (forth, (last, mut answers)) = (
                in_order(&mut actions.iter()),
                in_order(&mut actions.iter().rev()),
            );
            answers.reverse();
            vec![forth, (last, answers)]
        }
    }
}

fn chosen(model: &Model, back: usize) -> usize {
    model.requests.len() - 1 - back % model.requests.len()
}

async fn taken(
    program: &Program,
    real: &mut RealRequests,
    model: &Model,
    step: &Step,
) -> Vec<Answer> {
    match step {
        Step::Ask(call) => vec![real.ask(*call).await],
        Step::Strict(strict) => {
            program.set_strict(*strict);
            Vec::new()
        }
        Step::Do(..) | Step::Likely(..) if model.requests.is_empty() => Vec::new(),
        Step::Likely(..) => unreachable!("a step is settled before it is taken"),
        Step::Do(back, actions) => {
            let at = chosen(model, *back);
            real.act(at, actions, model.requests[at].fence).await
        }
    }
}

/// One life of requests; the model at its end.
async fn live(program: &Program, steps: &[Step]) -> Result<Model, TestCaseError> {
    let (mut real, mut model) = (program.real().await, Model::default());
    let mut before = real.look(0).await;
    let mut done = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let step = settled(&model, step);
        done.push(step.clone());
        let right = foretold(&model, &step);
        let answers = taken(program, &mut real, &model, &step).await;
        // Everybody's badges in turn: to count them all would cost more than everything else.
        let reader = at % PEOPLE.len();
        let after = real.look(reader).await;
        lawful(&before, &after, &step)?;
        let found = right
            .iter()
            .find(|(model, foretold)| *foretold == answers && model.view(reader) == after.view);
        let Some((next, _)) = found else {
            let right: Vec<_> = right
                .iter()
                .map(|(model, answers)| (answers, model.view(reader)))
                .collect();
            let found = (&answers, &after.view);
            return Err(TestCaseError::fail(format!(
                "after {done:#?}\nthere is {found:#?}\ninstead of {right:#?}"
            )));
        };
        model = next.clone();
        before = after;
    }
    Ok(model)
}

/// What holds whatever the model says.
fn lawful(before: &Seen, after: &Seen, step: &Step) -> Result<(), TestCaseError> {
    let at_once = if let Step::Do(_, actions) = step {
        actions.len()
    } else {
        1
    };
    for (at, (was, is)) in before
        .view
        .requests
        .iter()
        .zip(&after.view.requests)
        .enumerate()
    {
        let (from, to) = (was.state, is.state);
        let by_way = State::ALL
            .into_iter()
            .any(|way| at_once > 1 && from.can_become(way) && way.can_become(to));
        prop_assert!(
            from == to || from.can_become(to) || by_way,
            "request {at}: {from:?} → {to:?}"
        );
        let too_late = was.overdue && from == State::Pending;
        prop_assert!(
            !too_late || matches!(to, State::Pending | State::Expired),
            "request {at}: overdue → {to:?}"
        );
        let ((once, end), (still, ended)) = (&before.fixed[at], &after.fixed[at]);
        prop_assert_eq!(once, still, "request {}: what is written once", at);
        prop_assert!(
            end.is_none() || end == ended,
            "request {at} went on after its end: {end:#?} → {ended:#?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_call_whose_conversation_was_deleted_makes_no_request() {
    let program = Program::new().await;
    let mut real = program.real().await;
    real.delete_conversation().await;
    let call = Call {
        by: 0,
        tool: 0,
        amount: 0,
    };
    assert_eq!(real.ask(call).await, Answer::Refused("conflict"));
    assert_eq!(real.look(0).await.view.requests, []);
}

#[test]
fn requests_live_as_the_model_says() {
    let env = Environment::from_process();
    let cases = env
        .get("PROPTEST_CASES")
        .map_or(CASES, |cases| cases.parse().unwrap());
    let (failure_persistence, max_shrink_time) = (None, 60_000);
    let mut config = ProptestConfig {
        cases,
        failure_persistence,
        max_shrink_time,
        ..Default::default()
    };
    let usual =
        cases == CASES && [RngSeed::Random, RngSeed::Fixed(SEED)].contains(&config.rng_seed);
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let program = runtime.block_on(Program::new());
    let lives = RefCell::new(Vec::new());
    let ran = TestRunner::new(config).run(&life(), |steps| {
        lives
            .borrow_mut()
            .push(runtime.block_on(live(&program, &steps))?);
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    // That they were led everywhere, so that the agreement means something.
    let lives = lives.into_inner();
    let made = |from: State, to| lives.iter().any(|model| model.turns.contains(&(from, to)));
    let pairs = State::ALL
        .into_iter()
        .flat_map(|from| State::ALL.map(|to| (from, to)));
    let missed: Vec<_> = pairs
        .filter(|(from, to)| from.can_become(*to) && !made(*from, *to))
        .collect();
    assert!(missed.is_empty() || !usual, "never made: {missed:?}");
    let fenced = |state| lives.iter().any(|model| model.fenced.contains(&state));
    let limited: BTreeSet<_> = lives
        .iter()
        .flat_map(|model| model.limited.clone())
        .collect();
    assert!(
        limited.len() == 4 || !usual,
        "of what limits do there was only {limited:?}"
    );
    let both = fenced(State::Approved) && fenced(State::Executing);
    assert!(
        both || !usual,
        "no executor came after another had taken its place"
    );
}
