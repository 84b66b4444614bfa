//! Conditions of rules (`when`): CEL with its standard functions, about the arguments of a call and who makes it when.
//!
//! CEL has no loop but the macros over a list, and the parser limits how deep a condition is nested. What is left is
//! limited here: a condition is short, has no loop within a loop and few sums, and no value that it sees is long. A value that
//! is too long, too deep or too exact can be compared for equality and nothing else, so a condition that wants more of
//! it cannot be evaluated. What cannot be evaluated never allows a call ([`super::decide`]).
//!
//! Numbers: a whole number of 64 bits is an `int`, however it is written (`1000`, `1000.0`, `1e3`), and another number
//! is a `double` if that holds all of its digits. CEL compares the two by their values.

use std::{
    any::Any,
    collections::{BTreeSet, HashMap},
    fmt,
    hash::{Hash, Hasher},
    sync::{Arc, LazyLock},
    thread,
};

use cel::{
    Context, Env, ExecutionError, ParseErrors, Value as CelValue,
    common::{
        ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators},
        traits::{Container, Indexer, Iterable, Sizer},
        types::{
            CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString,
            CelTimestamp, DOUBLE_TYPE, LIST_TYPE, Type,
        },
        value::{StaticVal, Val},
    },
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};
use strum::IntoEnumIterator as _;
use time::OffsetDateTime;

use crate::{
    json::{Decimal, Json, Members},
    tool_schema::{MemberNames, Step},
};

/// The longest condition, in bytes.
pub const MAX_LENGTH: usize = 1000;
/// The most items of a list, and members of an object, that a condition looks into.
const MAX_ITEMS: usize = 100;
/// The longest text that a condition looks into, in bytes.
const MAX_TEXT: usize = 4096;
/// How deep an argument is looked into.
const MAX_DEPTH: usize = 8;
/// The most values in `vars` of a pack.
const MAX_VARS: usize = 1000;
/// How deep brackets are nested in a condition.
const MAX_NESTING: usize = 12;
/// The stack of the parser, which takes more than 100 KiB for each bracket where it is not optimised.
const PARSER_STACK: usize = 8 << 20;
/// How many operators, functions and members a value goes through.
const MAX_STEPS: usize = 40;
/// The most `+` in a condition: each may make a longer text.
const MAX_SUMS: usize = 8;

const ARGUMENTS: &str = "args";
const CLAIMS: &str = "claims";
const ORIGIN: &str = "origin";
const VARS: &str = "vars";
const VARIABLES: [&str; 6] = [ARGUMENTS, "roles", CLAIMS, ORIGIN, "now", VARS];
const HAS: &str = operators::HAS;
const LOOPS: [&str; 4] = [
    operators::ALL,
    operators::EXISTS,
    operators::EXISTS_ONE,
    operators::FILTER,
];
/// What is true or false by parts that are.
const CONNECTIVES: [&str; 4] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
];
const OPERATORS: [&str; 16] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::IN,
];
const ARITHMETIC: [&str; 6] = [
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::NEGATE,
];
/// Functions with a value that is neither true nor false, beside those that read a time.
const NOT_BOOL: [&str; 7] = [
    "size",
    "int",
    "uint",
    FINITE,
    "string",
    "timestamp",
    "duration",
];
const FUNCTIONS: [&str; 20] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "timestamp",
    "duration",
    "getFullYear",
    "getMonth",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getHours",
    "getMinutes",
    "getSeconds",
];

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib().with_optional_support(false);
    env.add_overload(LIST, LIST, vec![LIST_TYPE], |mut of| Ok(of.remove(0)))
        .expect("no other function has its name");
    env.add_overload(FINITE, FINITE, vec![DOUBLE_TYPE], |mut of| {
        let value = of.remove(0);
        let double = value.downcast_ref::<CelDouble>();
        if double.is_some_and(|double| double.inner().is_finite()) {
            Ok(value)
        } else {
            Err(ExecutionError::function_error("double", "it is no number"))
        }
    })
    .expect("no other function has its name");
    Arc::new(env)
});

/// What is put around an argument that a loop goes through. The loops of CEL go through the keys of an object, too, and a
/// rule about a list would say nothing of what the server reads.
const LIST: &str = "@list";
/// What is put around `double(…)`: a text such as `NaN` or `-inf` is no amount, and less than every other.
const FINITE: &str = "@finite";

/// When a rule applies. Compiled once, when its pack is read.
#[derive(Clone)]
pub struct Condition {
    source: String,
    expression: Arc<IdedExpr>,
    names: Arc<Names>,
    /// What it names as `vars`, where that is not what the pack of the call says.
    vars: Option<Vars>,
}

/// What a condition names.
#[derive(Default)]
struct Names {
    arguments: MemberNames,
    /// The places whose members it names by what it computes.
    computed: Vec<Path>,
    claims: BTreeSet<String>,
    sums: usize,
    steps: usize,
}

/// What is known of a call, beside its tool and the roles of its user.
#[derive(Clone, Copy)]
pub struct CallFacts<'a> {
    pub arguments: &'a Json,
    pub claims: &'a Map<String, Value>,
    pub origin: Origin,
    pub now: OffsetDateTime,
    pub vars: &'a Vars,
    /// The limits of the server that the call would exceed, by their places.
    pub exceeded: &'a [usize],
    /// The server says that the tool changes nothing.
    pub only_reads: bool,
}

/// The way on which a call comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr, strum::EnumIter)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Origin {
    /// The model wants it while it talks with a user.
    #[default]
    Chat,
    /// The model wants it in a run that a program or another run has started.
    Run,
    /// A user has typed it.
    Command,
    Skill,
    /// A client calls the tool itself.
    Mcp,
}

/// The variables of a pack that its conditions name as `vars`.
#[derive(Clone, Default)]
pub struct Vars {
    members: Members,
    value: Shared,
}

impl Condition {
    /// Compiles a condition. The error says what to write instead.
    pub fn parse(source: &str) -> Result<Self, String> {
        if source.len() > MAX_LENGTH {
            return Err(format!(
                "it has {} bytes, and {MAX_LENGTH} are the most",
                source.len()
            ));
        }
        if nesting(source) > MAX_NESTING {
            return Err(format!(
                "its brackets are nested more than {MAX_NESTING} deep"
            ));
        }
        let parsing = || -> Result<(Names, IdedExpr), String> {
            // Without macros, so that each call is still there by its name.
            let plain = Env::default().with_optional_support(false).parser();
            let mut names = Names::default();
            let expression = plain
                .parse(source)
                .map_err(|errors| first_problem(&errors))?;
            names.check(&expression, &mut Vec::new())?;
            let mut literals = BTreeSet::new();
            collect_texts(&expression, &mut literals);
            name_members(&expression, &[], &literals, &mut names);
            let program = ENV.compile(source);
            let program = program.map_err(|errors| first_problem(&errors))?;
            let mut expression = program.expression().clone();
            index_members(&mut expression);
            Ok((names, expression))
        };
        let parsed = thread::scope(|scope| {
            let parser = thread::Builder::new().stack_size(PARSER_STACK);
            let parsed = parser
                .spawn_scoped(scope, parsing)
                .map(thread::ScopedJoinHandle::join);
            parsed.ok().and_then(Result::ok)
        });
        let (names, expression) =
            parsed.unwrap_or_else(|| Err("it could not be parsed".to_owned()))?;
        Ok(Self {
            source: source.to_owned(),
            expression: Arc::new(expression),
            names: Arc::new(names),
            vars: None,
        })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// Lets it name these `vars`, whatever the pack of a call says.
    pub(super) fn bind(&mut self, vars: &Vars) {
        self.vars = Some(vars.clone());
    }

    pub(super) fn vars(&self) -> Option<&Vars> {
        self.vars.as_ref()
    }

    /// The claims that it names.
    pub fn claims(&self) -> &BTreeSet<String> {
        &self.names.claims
    }

    /// The arguments that it names, and what it names in them.
    pub fn arguments(&self) -> &MemberNames {
        &self.names.arguments
    }

    /// The names in `vars`, at each place whose members it names by what it computes. Absent where it computes none.
    pub fn computed_arguments(&self, vars: &Vars) -> Option<MemberNames> {
        if self.names.computed.is_empty() {
            return None;
        }
        let mut texts = BTreeSet::new();
        for (name, value) in self.vars.as_ref().unwrap_or(vars).members.iter() {
            texts.insert(name.to_owned());
            value.collect_texts(&mut texts);
        }
        let mut members = MemberNames::default();
        for place in &self.names.computed {
            for text in &texts {
                members.insert(place.iter().cloned().chain([Step::Member(text.clone())]));
            }
        }
        Some(members)
    }

    /// What is wrong with it, whatever the call is. `None` for `vars` where the pack's are not known.
    pub fn find_flaw(&self, vars: Option<&Vars>) -> Option<Flaw> {
        let none = Vars::default();
        let facts = CallFacts {
            arguments: &Json::Null,
            claims: &Map::new(),
            origin: Origin::default(),
            now: OffsetDateTime::UNIX_EPOCH,
            vars: vars.unwrap_or(&none),
            exceeded: &[],
            only_reads: false,
        };
        let inspection = Inspection {
            known: Known::new(&facts, std::iter::empty()),
            has_vars: vars.is_some(),
        };
        if let Some(unknown) = inspection.find_unknown(&self.expression) {
            return Some(Flaw::Unknown(unknown));
        }
        match inspection.answer(&self.expression) {
            Answer::Open => None,
            Answer::Always(holds) => Some(Flaw::Constant(holds)),
            Answer::Never => Some(Flaw::NoAnswer),
        }
    }

    /// Why it cannot be evaluated for arguments of these types, if their types are the reason. Each part is tried, since
    /// other values than these may make it the one that decides.
    pub(super) fn find_type_problem(&self, facts: &CallFacts<'_>) -> Option<String> {
        let known = Known::new(facts, std::iter::empty());
        find_type_problem(&self.expression, &known)
    }

    /// Whether it holds; `None` when it cannot be evaluated.
    pub(super) fn holds(&self, known: &Known) -> Option<bool> {
        let value = CelValue::resolve_val(&self.expression, &known.0).ok()?;
        value.downcast_ref::<CelBool>().map(|flag| *flag.inner())
    }
}

/// Why a condition cannot mean what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It names what there is not: a value of `vars`, or an origin.
    Unknown(String),
    /// It, or a part that should be true or false, never is.
    NoAnswer,
    /// It is the same for all calls.
    Constant(bool),
}

/// What an expression can be, over all calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Open,
    Always(bool),
    /// Neither true nor false.
    Never,
}

/// A look at a condition that no call is known to.
struct Inspection {
    known: Known,
    has_vars: bool,
}

impl Inspection {
    /// Whether no call makes an expression another one.
    fn is_fixed(&self, expression: &IdedExpr) -> bool {
        let are_fixed = |parts: &[IdedExpr]| parts.iter().all(|part| self.is_fixed(part));
        match &expression.expr {
            Expr::Literal(_) => true,
            Expr::Ident(name) => self.has_vars && name == VARS,
            Expr::Select(select) => self.is_fixed(&select.operand),
            Expr::Call(call) => {
                let target = call.target.as_deref();
                target.is_none_or(|target| self.is_fixed(target)) && are_fixed(&call.args)
            }
            Expr::List(list) => are_fixed(&list.elements),
            Expr::Map(_) | Expr::Struct(_) | Expr::Comprehension(_) | Expr::Unspecified => false,
        }
    }

    fn evaluate(&self, expression: &IdedExpr) -> Option<Box<dyn Val>> {
        let value = CelValue::resolve_val(expression, &self.known.0).ok()?;
        Some(value.clone_as_boxed())
    }

    /// What an expression names that there is not.
    fn find_unknown(&self, expression: &IdedExpr) -> Option<String> {
        let find = |part: &IdedExpr| self.find_unknown(part);
        match &expression.expr {
            Expr::Select(select) => find(&select.operand),
            Expr::Call(call) => {
                let mut parts = call.target.as_deref().into_iter().chain(&call.args);
                let found = parts.find_map(find);
                found.or_else(|| match (call.func_name.as_str(), call.args.as_slice()) {
                    (operators::INDEX, [of, _]) if is_in(of, VARS) && self.is_fixed(expression) => {
                        let is_there = self.evaluate(expression).is_some();
                        (!is_there).then(|| format!("there is no `{}`", written(expression)))
                    }
                    (operators::EQUALS | operators::NOT_EQUALS, [one, other]) => {
                        let other = match (is_origin(one), is_origin(other)) {
                            (true, false) => other,
                            (false, true) => one,
                            _ => return None,
                        };
                        let value = self.evaluate(other).filter(|_| self.is_fixed(other))?;
                        find_unknown_origin(&*value)
                    }
                    (operators::IN, [one, list]) if is_origin(one) && self.is_fixed(list) => {
                        let list = self.evaluate(list)?;
                        let mut items = list.as_iterable()?.iter();
                        std::iter::from_fn(|| {
                            items.next().map(cel::common::value::Val::clone_as_boxed)
                        })
                        .find_map(|item| find_unknown_origin(&*item))
                    }
                    _ => None,
                })
            }
            Expr::List(list) => list.elements.iter().find_map(find),
            Expr::Map(map) => map.entries.iter().find_map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => find(&entry.key).or_else(|| find(&entry.value)),
                EntryExpr::StructField(_) => None,
            }),
            Expr::Comprehension(of) => find(&of.iter_range).or_else(|| find(&of.loop_step)),
            Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => None,
        }
    }

    fn answer(&self, expression: &IdedExpr) -> Answer {
        if let Expr::Call(call) = &expression.expr {
            let parts: Vec<_> = call.args.iter().map(|part| self.answer(part)).collect();
            match (call.func_name.as_str(), parts.as_slice()) {
                (operators::LOGICAL_NOT, [Answer::Always(holds)]) => return Answer::Always(!holds),
                (operators::LOGICAL_NOT, [part]) => return *part,
                (name @ (operators::LOGICAL_AND | operators::LOGICAL_OR), [one, other]) => {
                    // What decides whatever the other part is.
                    let decides = Answer::Always(name == operators::LOGICAL_OR);
                    return match (*one, *other) {
                        (one, other) if one == decides || other == decides => decides,
                        (Answer::Never, _) | (_, Answer::Never) => Answer::Never,
                        (Answer::Always(_), part) | (part, Answer::Always(_)) => part,
                        _ => Answer::Open,
                    };
                }
                (operators::CONDITIONAL, [when, one, other]) => {
                    return match (*when, *one, *other) {
                        (Answer::Always(true), part, _) | (Answer::Always(false), _, part) => part,
                        (Answer::Never, ..) | (_, Answer::Never, _) | (.., Answer::Never) => {
                            Answer::Never
                        }
                        (_, one, other) if one == other => one,
                        _ => Answer::Open,
                    };
                }
                _ => {}
            }
        }
        if self.is_fixed(expression) {
            let value = self.evaluate(expression);
            let flag = value.and_then(|value| Some(*value.downcast_ref::<CelBool>()?.inner()));
            return flag.map_or(Answer::Never, Answer::Always);
        }
        if is_never_bool(expression) {
            Answer::Never
        } else {
            Answer::Open
        }
    }
}

/// Whether an expression has a value of another type, whatever the call is.
fn is_never_bool(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Ident(name) => VARIABLES.contains(&name.as_str()),
        Expr::Call(call) => {
            let name = call.func_name.as_str();
            ARITHMETIC.contains(&name) || NOT_BOOL.contains(&name) || name.starts_with("get")
        }
        Expr::List(_) | Expr::Map(_) => true,
        Expr::Comprehension(of) => matches!(of.accu_init.expr, Expr::List(_)),
        Expr::Literal(_) | Expr::Select(_) | Expr::Struct(_) | Expr::Unspecified => false,
    }
}

fn is_origin(expression: &IdedExpr) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == ORIGIN)
}

/// A value in `vars` as an author writes it.
fn written(expression: &IdedExpr) -> String {
    match &expression.expr {
        Expr::Call(call) => match call.args.as_slice() {
            [of, index] => match &index.expr {
                Expr::Literal(LiteralValue::String(name)) => {
                    format!("{}.{}", written(of), name.inner())
                }
                _ => format!("{}[…]", written(of)),
            },
            _ => String::new(),
        },
        _ => VARS.to_owned(),
    }
}

fn find_unknown_origin(value: &dyn Val) -> Option<String> {
    let all: Vec<&str> = Origin::iter().map(Into::into).collect();
    let name = value
        .downcast_ref::<CelString>()
        .map(|name| name.inner().to_owned());
    match name {
        Some(name) if all.contains(&name.as_str()) => None,
        Some(name) => Some(format!(
            "there is no origin {name:?}; there are {}",
            all.join(", ")
        )),
        None => Some(format!("an origin is a text; there are {}", all.join(", "))),
    }
}

/// Why an expression that should be true or false is neither.
fn find_type_problem(expression: &IdedExpr, known: &Known) -> Option<String> {
    if let Expr::Call(call) = &expression.expr
        && CONNECTIVES.contains(&call.func_name.as_str())
    {
        let mut parts = call.args.iter();
        return parts.find_map(|part| find_type_problem(part, known));
    }
    match CelValue::resolve_val(expression, &known.0) {
        Ok(value) if value.downcast_ref::<CelBool>().is_none() => {
            Some("a part of it is neither true nor false".to_owned())
        }
        Err(
            problem @ (ExecutionError::UnexpectedType { .. }
            | ExecutionError::NoSuchOverload(_)
            | ExecutionError::ValuesNotComparable(..)
            | ExecutionError::UnsupportedBinaryOperator(..)),
        ) => Some(problem.to_string()),
        Ok(_) | Err(_) => None,
    }
}

fn first_problem(errors: &ParseErrors) -> String {
    let first = errors.errors.first();
    first.map_or_else(String::new, |error| {
        // All that could stand there is a long list.
        let problem = error.msg.split(" expecting ").next().unwrap_or_default();
        format!("at {}:{}: {problem}", error.pos.0, error.pos.1)
    })
}

/// Writes `args.amount` as `args["amount"]`. It is the same value, and a decision takes a fifth less time: of the first,
/// the crate asks at each call whether there is a variable with this whole name. Adds [`LIST`] and [`FINITE`].
fn index_members(expression: &mut IdedExpr) {
    let id = expression.id;
    match &mut expression.expr {
        Expr::Select(select) => {
            index_members(&mut select.operand);
            // `has(args.amount)` asks whether it is there.
            if !select.test {
                let select = std::mem::take(select);
                let name = LiteralValue::String(CelString::from(select.field));
                let name = IdedExpr {
                    id,
                    expr: Expr::Literal(name),
                };
                expression.expr = Expr::Call(CallExpr {
                    func_name: operators::INDEX.to_owned(),
                    target: None,
                    args: vec![*select.operand, name],
                });
            }
        }
        Expr::Call(call) => {
            let parts = call.target.as_deref_mut().into_iter().chain(&mut call.args);
            parts.for_each(index_members);
            if call.func_name == "double" {
                wrap(expression, FINITE);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(index_members),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    index_members(&mut entry.key);
                    index_members(&mut entry.value);
                }
            }
        }
        Expr::Comprehension(of) => {
            let parts = [&mut of.iter_range, &mut of.accu_init, &mut of.loop_cond];
            let parts = parts.into_iter().chain([&mut of.loop_step, &mut of.result]);
            parts.for_each(index_members);
            if is_in(&of.iter_range, ARGUMENTS) {
                wrap(&mut of.iter_range, LIST);
            }
        }
        Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}

fn wrap(expression: &mut IdedExpr, function: &str) {
    let id = expression.id;
    let inner = std::mem::take(expression);
    let call = CallExpr {
        func_name: function.to_owned(),
        target: None,
        args: vec![inner],
    };
    *expression = IdedExpr {
        id,
        expr: Expr::Call(call),
    };
}

/// Whether an expression is a variable, or a value in it.
fn is_in(expression: &IdedExpr, variable: &str) -> bool {
    match &expression.expr {
        Expr::Ident(name) => name == variable,
        Expr::Call(call) if call.func_name == operators::INDEX => {
            let of = call.args.first();
            of.is_some_and(|of| is_in(of, variable))
        }
        _ => false,
    }
}

/// The parts of an expression.
fn parts_of(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Select(select) => vec![&select.operand],
        Expr::Call(call) => call
            .target
            .as_deref()
            .into_iter()
            .chain(&call.args)
            .collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => {
            let entries = map.entries.iter().filter_map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => Some([&entry.key, &entry.value]),
                EntryExpr::StructField(_) => None,
            });
            entries.flatten().collect()
        }
        Expr::Literal(_)
        | Expr::Ident(_)
        | Expr::Struct(_)
        | Expr::Comprehension(_)
        | Expr::Unspecified => Vec::new(),
    }
}

/// The texts that stand in an expression.
fn collect_texts(expression: &IdedExpr, into: &mut BTreeSet<String>) {
    if let Expr::Literal(LiteralValue::String(text)) = &expression.expr {
        into.insert(text.inner().to_owned());
    }
    for part in parts_of(expression) {
        collect_texts(part, into);
    }
}

/// Notes the members of arguments that an expression names, in which the macros are calls. `bound` has the variable of the
/// loop around it, and the places that it stands for. A name that is computed may be each of the `literals` in it.
fn name_members(
    expression: &IdedExpr,
    bound: &[(&str, Vec<Path>)],
    literals: &BTreeSet<String>,
    into: &mut Names,
) {
    for path in places_of(expression, bound) {
        into.arguments.insert(path);
    }
    if let Expr::Call(call) = &expression.expr {
        if let (Some(list), [variable, body]) = (&call.target, call.args.as_slice())
            && LOOPS.contains(&call.func_name.as_str())
            && let Expr::Ident(variable) = &variable.expr
        {
            name_members(list, bound, literals, into);
            let each = items_of(list, bound);
            name_members(body, &[(variable, each)], literals, into);
            return;
        }
        let named = match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::IN, [name, of]) | (operators::INDEX, [of, name]) => Some((name, of)),
            _ => None,
        };
        for (name, place) in named
            .into_iter()
            .flat_map(|(name, of)| places_of(of, bound).into_iter().map(move |it| (name, it)))
        {
            let at = |text: &str| {
                let member = Step::Member(text.to_owned());
                place.iter().cloned().chain([member]).collect::<Path>()
            };
            match &name.expr {
                Expr::Literal(LiteralValue::String(name)) => {
                    into.arguments.insert(at(name.inner()));
                }
                Expr::Literal(_) => {}
                _ => {
                    let each = literals.iter().map(|text| at(text));
                    each.for_each(|path| into.arguments.insert(path));
                    into.computed.push(place.clone());
                }
            }
        }
    }
    for part in parts_of(expression) {
        name_members(part, bound, literals, into);
    }
}

type Path = Vec<Step>;

/// The places in the arguments whose values an expression may be.
fn places_of(expression: &IdedExpr, bound: &[(&str, Vec<Path>)]) -> Vec<Path> {
    match &expression.expr {
        Expr::Ident(name) => {
            let item = bound.iter().find(|(variable, _)| variable == name);
            match item {
                Some((_, places)) => places.clone(),
                None if name == ARGUMENTS => vec![Path::new()],
                None => Vec::new(),
            }
        }
        Expr::Select(select) => member_of(&select.operand, &select.field, bound),
        Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::INDEX, [of, index]) => {
                let Expr::Literal(LiteralValue::String(name)) = &index.expr else {
                    return items_of(of, bound);
                };
                member_of(of, name.inner(), bound)
            }
            (operators::CONDITIONAL, [_, one, other]) => {
                [places_of(one, bound), places_of(other, bound)].concat()
            }
            (operators::FILTER, _) => {
                let list = call.target.as_deref();
                list.map(|list| places_of(list, bound)).unwrap_or_default()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The places of the items of a list, or of the members of an object whose names are not said.
fn items_of(expression: &IdedExpr, bound: &[(&str, Vec<Path>)]) -> Vec<Path> {
    match &expression.expr {
        Expr::List(_) | Expr::Map(_) => {
            let parts = parts_of(expression).into_iter();
            parts.flat_map(|part| places_of(part, bound)).collect()
        }
        Expr::Call(call) if call.func_name == operators::ADD => {
            let parts = call.args.iter();
            parts.flat_map(|part| items_of(part, bound)).collect()
        }
        _ => with_step(places_of(expression, bound), &Step::Each),
    }
}

/// The places of a member. In an object that the expression writes itself, it may be each of the values.
fn member_of(expression: &IdedExpr, name: &str, bound: &[(&str, Vec<Path>)]) -> Vec<Path> {
    match &expression.expr {
        Expr::Map(_) => items_of(expression, bound),
        _ => with_step(places_of(expression, bound), &Step::Member(name.to_owned())),
    }
}

fn with_step(mut places: Vec<Path>, step: &Step) -> Vec<Path> {
    for path in &mut places {
        path.push(step.clone());
    }
    places
}

/// How deep the brackets of a text are nested, those in quotes included.
fn nesting(source: &str) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for c in source.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

impl Names {
    /// Checks an expression, which goes through limited steps.
    fn check(&mut self, expression: &IdedExpr, bound: &mut Vec<String>) -> Result<(), String> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(format!(
                "a value in it goes through more than {MAX_STEPS} steps"
            ));
        }
        let checked = self.check_expression(expression, bound);
        self.steps -= 1;
        checked
    }

    /// Checks an expression in which the macros are calls. `bound` has the variables of the loop around it.
    fn check_expression(
        &mut self,
        expression: &IdedExpr,
        bound: &mut Vec<String>,
    ) -> Result<(), String> {
        match &expression.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) if name == CLAIMS => {
                Err("name the claim: `claims.department`, `claims[\"department\"]`".to_owned())
            }
            Expr::Ident(name) if VARIABLES.contains(&name.as_str()) || bound.contains(name) => {
                Ok(())
            }
            Expr::Ident(name) => Err(format!(
                "there is no variable `{name}`; there are {}",
                VARIABLES.join(", ")
            )),
            Expr::Select(select) => self.check_member(&select.operand, &select.field, bound),
            Expr::Call(call) if call.func_name == operators::INDEX => {
                if let [of, index] = call.args.as_slice()
                    && let Expr::Literal(LiteralValue::String(name)) = &index.expr
                {
                    return self.check_member(of, name.inner(), bound);
                }
                call.args
                    .iter()
                    .try_for_each(|part| self.check(part, bound))
            }
            Expr::Call(call) if LOOPS.contains(&call.func_name.as_str()) => {
                let (Some(list), [variable, body]) = (&call.target, call.args.as_slice()) else {
                    return Err(format!("write `args.items.{}(item, …)`", call.func_name));
                };
                let Expr::Ident(variable) = &variable.expr else {
                    return Err(format!("`{}` needs the name of a variable", call.func_name));
                };
                self.check(list, bound)?;
                if !bound.is_empty() {
                    return Err(
                        "a loop within a loop could take too long; split the rule".to_owned()
                    );
                }
                if VARIABLES.contains(&variable.as_str()) {
                    return Err(format!("`{variable}` is taken; name the item differently"));
                }
                bound.push(variable.clone());
                let checked = self.check(body, bound);
                bound.pop();
                checked
            }
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                let is_known = OPERATORS.contains(&name)
                    || FUNCTIONS.contains(&name)
                    || [operators::NEGATE, HAS].contains(&name);
                if !is_known {
                    return Err(format!(
                        "there is no function `{name}`; there are {}, {} and {HAS}",
                        FUNCTIONS.join(", "),
                        LOOPS.join(", ")
                    ));
                }
                self.sums += usize::from(name == operators::ADD);
                if self.sums > MAX_SUMS {
                    return Err(format!("it has more than {MAX_SUMS} `+`"));
                }
                let mut parts = call.target.as_deref().into_iter().chain(&call.args);
                parts.try_for_each(|part| self.check(part, bound))
            }
            Expr::List(list) => {
                let mut items = list.elements.iter();
                items.try_for_each(|item| self.check(item, bound))
            }
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.check(&entry.key, bound)?;
                    self.check(&entry.value, bound)
                }
                EntryExpr::StructField(_) => Err("write a map with keys in quotes".to_owned()),
            }),
            Expr::Struct(_) | Expr::Comprehension(_) | Expr::Unspecified => {
                Err("only values, operators and functions can stand here".to_owned())
            }
        }
    }

    fn check_member(
        &mut self,
        of: &IdedExpr,
        name: &str,
        bound: &mut Vec<String>,
    ) -> Result<(), String> {
        match &of.expr {
            Expr::Ident(variable) if variable == ARGUMENTS => Ok(()),
            Expr::Ident(variable) if variable == CLAIMS => {
                self.claims.insert(name.to_owned());
                Ok(())
            }
            _ => self.check(of, bound),
        }
    }
}

/// The variables of conditions for one call.
pub(super) struct Known(Context<'static, 'static>);

impl Known {
    pub fn new<'r>(facts: &CallFacts<'_>, roles: impl Iterator<Item = &'r String>) -> Self {
        let mut context = Context::with_env(ENV.clone());
        let roles: Vec<_> = roles.map(|role| text(role)).collect();
        let claims = facts.claims.iter();
        let claims =
            claims.map(|(name, claim)| (key(name), of_json(&Json::from(claim), 1, MAX_ITEMS)));
        let claims: HashMap<_, _> = claims.collect();
        let origin: &'static str = facts.origin.into();
        context.add_variable_as_val(ARGUMENTS, of_json(facts.arguments, 0, MAX_ITEMS));
        context.add_variable_as_val("roles", Box::new(CelList::from(roles)));
        context.add_variable_as_val(CLAIMS, Box::new(CelMap::from(claims)));
        context.add_variable_as_val("origin", Box::new(CelString::from(origin)));
        context.add_variable_as_val("vars", Box::new(facts.vars.value.clone()));
        if let Some(now) = timestamp(facts.now) {
            context.add_variable_as_val("now", Box::new(now));
        }
        Self(context)
    }
}

fn timestamp(at: OffsetDateTime) -> Option<CelTimestamp> {
    let at = chrono::DateTime::from_timestamp(at.unix_timestamp(), at.nanosecond())?;
    Some(CelTimestamp::from(at.fixed_offset()))
}

fn key(name: &str) -> CelMapKey<'static> {
    CelMapKey::from(name.to_owned())
}

fn text(text: &str) -> Box<dyn Val> {
    if text.len() > MAX_TEXT {
        Box::new(Opaque(Json::Text(text.to_owned())))
    } else {
        Box::new(CelString::from(text.to_owned()))
    }
}

/// A value as conditions see it. With more than `most` items, it is opaque.
fn of_json(json: &Json, depth: usize, most: usize) -> Box<dyn Val> {
    let opaque = || Box::new(Opaque(json.clone()));
    match json {
        _ if depth > MAX_DEPTH => opaque(),
        Json::Null => Box::new(CelNull),
        Json::Bool(flag) => Box::new(CelBool::from(*flag)),
        Json::Text(said) => text(said),
        Json::Number(number) => {
            let whole = number.decimal().filter(Decimal::is_integer);
            let whole = whole.and_then(|whole| whole.canonical().parse::<i64>().ok());
            let double = number.rounded().as_f64().filter(|_| number.is_exact());
            match (whole, double) {
                (Some(whole), _) => Box::new(CelInt::from(whole)),
                (None, Some(double)) => Box::new(CelDouble::from(double)),
                (None, None) => opaque(),
            }
        }
        Json::List(items) if items.len() <= most => {
            let items = items.iter().map(|item| of_json(item, depth + 1, most));
            Box::new(CelList::from(items.collect::<Vec<_>>()))
        }
        Json::Object(members) if members.len() <= most => Box::new(map_of(members, depth, most)),
        Json::List(_) | Json::Object(_) => opaque(),
    }
}

fn map_of(members: &Members, depth: usize, most: usize) -> CelMap<'static> {
    let members = members.iter();
    let members = members.map(|(name, value)| (key(name), of_json(value, depth + 1, most)));
    CelMap::from(members.collect::<HashMap<_, _>>())
}

impl Vars {
    pub(super) fn to_json(&self) -> Json {
        Json::Object(self.members.clone())
    }

    /// The error says why conditions cannot use these values.
    pub fn new(members: Members) -> Result<Self, String> {
        let mut values = 0;
        for (_, value) in members.iter() {
            values += count(value, 1)?;
        }
        if values > MAX_VARS {
            return Err(format!(
                "it has {values} values, and {MAX_VARS} are the most"
            ));
        }
        Ok(Self {
            value: Shared(Arc::new(map_of(&members, 0, MAX_VARS))),
            members,
        })
    }
}

/// How many values these are, if a condition can look into each.
fn count(json: &Json, depth: usize) -> Result<usize, String> {
    fn counted<'j>(
        mut values: impl Iterator<Item = &'j Json>,
        depth: usize,
    ) -> Result<usize, String> {
        values.try_fold(1, |sum, value| Ok(sum + count(value, depth + 1)?))
    }
    match json {
        _ if depth > MAX_DEPTH => Err(format!("it is nested more than {MAX_DEPTH} deep")),
        Json::Text(text) if text.len() > MAX_TEXT => {
            Err(format!("a text has more than {MAX_TEXT} bytes"))
        }
        Json::Number(number) if !number.is_exact() => {
            Err(format!("no double holds the number {}", number.as_str()))
        }
        Json::List(items) => counted(items.iter(), depth),
        Json::Object(members) => counted(members.iter().map(|(_, value)| value), depth),
        _ => Ok(1),
    }
}

/// A value that is too long, too deep or too exact for a condition: it can be compared for equality alone.
#[derive(Debug)]
struct Opaque(Json);

static OPAQUE: Type = Type::new_unspecified_type("opaque");

impl StaticVal for Opaque {}

impl Val for Opaque {
    fn get_type(&self) -> &Type {
        &OPAQUE
    }

    fn cel_type() -> &'static Type {
        &OPAQUE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        let other = other.downcast_ref::<Self>();
        other.is_some_and(|other| match (&self.0, &other.0) {
            (Json::Number(one), Json::Number(other)) => one.decimal() == other.decimal(),
            (one, other) => one == other,
        })
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(Self(self.0.clone()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// A map that many calls look into.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<CelMap<'static>>);

impl StaticVal for Shared {}

impl Val for Shared {
    fn get_type(&self) -> &Type {
        self.0.get_type()
    }

    fn cel_type() -> &'static Type {
        CelMap::cel_type()
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(&*self.0)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(&*self.0)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        Some(&*self.0)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(&*self.0)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.0.equals(other)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

// Two conditions are one when they are written in the same way, and name the same variables.

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.vars == other.vars
    }
}

impl Eq for Condition {}

impl Hash for Condition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.source.serialize(serializer)
    }
}

impl PartialEq for Vars {
    fn eq(&self, other: &Self) -> bool {
        self.members == other.members
    }
}

impl fmt::Debug for Vars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.members.fmt(f)
    }
}
