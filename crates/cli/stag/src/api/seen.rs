//! What a request has seen or done, with the generation in force.

use serde_json::{Map, Value};

use crate::control::daemon::Daemon;
use crate::control::protocol::{Fault, Request};
use crate::control::verbs;

/// What was seen.
pub struct Looked {
    /// The generation that was in force.
    pub generation: u64,
    pub value: Value,
}

/// What a change has done.
pub struct Changed {
    /// The generation in force.
    pub generation: u64,
    /// That generation, if this change has made it by another managed document.
    pub made: Option<u64>,
    pub plan: Option<Value>,
    pub value: Value,
}

impl Looked {
    /// The answer of a verb without arguments.
    ///
    /// # Errors
    /// The verb's.
    pub fn verb(daemon: &Daemon, verb: &str) -> Result<Self, Fault> {
        let generation = daemon.running().parts.generation;
        let request = Request::new(verb, Map::new());
        let value = verbs::answer(daemon, &request, Default::default(), &mut |_| ())?;
        // A status tells its own.
        let generation = value.get("generation").and_then(Value::as_u64).unwrap_or(generation);
        Ok(Self { generation, value })
    }

    /// A part of the status.
    ///
    /// # Errors
    /// The verb's.
    pub fn status(daemon: &Daemon, part: impl Fn(&mut Value) -> Value) -> Result<Self, Fault> {
        let mut looked = Self::verb(daemon, "status")?;
        let value = part(&mut looked.value);
        Ok(Self { value, ..looked })
    }
}
