//! What an experiment's file chooses: points by their values, and one or several words.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::point::Value;

/// A selection of points by axis: a point must match on each axis named.
pub type Selection = BTreeMap<String, Choice>;

/// A choice among the values of one axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    One(Value),
    Any(Vec<Value>),
    /// Numbers from `from` to `to`, both included.
    Range(Range),
}

/// Numbers from `from` to `to`, both included.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    pub from: Option<Value>,
    pub to: Option<Value>,
}

impl Choice {
    /// Whether `value` is chosen.
    pub fn has(&self, value: &Value) -> bool {
        match self {
            Self::One(one) => one.same(value),
            Self::Any(any) => any.iter().any(|one| one.same(value)),
            Self::Range(Range { from, to }) => value.number().is_some_and(|number| {
                from.as_ref().and_then(Value::number).is_none_or(|from| number >= from)
                    && to.as_ref().and_then(Value::number).is_none_or(|to| number <= to)
            }),
        }
    }
}

/// One string or a list of strings.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Many {
    One(String),
    Several(Vec<String>),
}

impl Default for Many {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Many {
    /// All strings of it.
    pub fn list(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

/// Whether the point matches the selection on each axis that the selection names.
pub fn fits(selection: &Selection, coordinates: &[(String, Value)]) -> bool {
    selection
        .iter()
        .all(|(axis, choice)| coordinates.iter().any(|(name, value)| name == axis && choice.has(value)))
}
