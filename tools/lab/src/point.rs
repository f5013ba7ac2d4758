//! One point of an experiment's matrix: its value on each axis, and the settings that apply there.
//! It describes the measurement, but not its execution.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::measure::Error;

/// A value on an axis: a number, a word, or a truth value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Truth(bool),
    /// A whole number, in the axis's unit.
    Whole(i64),
    /// Any number, in the axis's unit.
    Real(f64),
    Text(String),
}

impl Value {
    /// The value as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "axes have no numbers above 2^53")]
            Self::Whole(n) => Some(*n as f64),
            Self::Real(n) => Some(*n),
            Self::Truth(_) | Self::Text(_) => None,
        }
    }

    /// Whether both values are the same place: 1 and 1.0 are.
    pub fn same(&self, other: &Self) -> bool {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) => a == b,
            _ => self == other,
        }
    }

    /// The order in tables: numbers by size, before words.
    pub fn order(&self, other: &Self) -> Ordering {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => self.to_string().cmp(&other.to_string()),
        }
    }

    /// Parses a value of the command line (`--only axis=value`): sizes may be written 64k.
    pub fn read(text: &str) -> Self {
        if let Ok(whole) = text.parse() {
            return Self::Whole(whole);
        }
        if let Some(size) = size(text) {
            return Self::Whole(size);
        }
        if let Some(real) = text.parse::<f64>().ok().filter(|n| n.is_finite()) {
            return Self::Real(real);
        }
        text.parse().map_or_else(|_| Self::Text(text.to_owned()), Self::Truth)
    }
}

/// `64k` as 65536, with binary units up to t; `None` for other text.
pub fn size(text: &str) -> Option<i64> {
    let unit = text.chars().last()?;
    let shift = match unit.to_ascii_lowercase() {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => return None,
    };
    let number: i64 = text.get(..text.len() - unit.len_utf8())?.parse().ok()?;
    number.checked_mul(1 << shift)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truth(yes) => write!(f, "{yes}"),
            Self::Whole(n) => write!(f, "{n}"),
            Self::Real(n) => write!(f, "{n}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// One point: coordinates, and the settings derived from them.
#[derive(Clone, Debug)]
pub struct Point {
    pub experiment: String,
    /// Axis name and value, in the order of the axes.
    pub coordinates: Vec<(String, Value)>,
    /// The experiment's settings; those of `--quick` override them in a short run, and those of the
    /// axis values override both.
    pub settings: toml::Table,
    /// Whether this is a short run (`--quick`).
    pub quick: bool,
}

impl Point {
    /// Its name in results: `block=512,transport=tcp`, in the order of the axes; `-` without axes.
    pub fn key(&self) -> String {
        key(&self.coordinates)
    }

    /// Its coordinates by axis name.
    pub fn by_axis(&self) -> BTreeMap<String, Value> {
        self.coordinates.iter().cloned().collect()
    }

    /// The value on axis `name`, or else the setting of that name.
    pub fn value(&self, name: &str) -> Option<Value> {
        // A setting of an axis value overrides the coordinate itself: `transport = "tuned"` may set
        // `transport = "tcp"`.
        let setting = self.settings.get(name).and_then(|value| value.clone().try_into().ok());
        setting.or_else(|| {
            self.coordinates.iter().find(|(axis, _)| axis == name).map(|(_, value)| value.clone())
        })
    }

    /// The word of that name, if any.
    ///
    /// # Errors
    /// If the value is a number.
    pub fn text(&self, name: &str) -> Result<Option<String>, Error> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(Error::Experiment(format!("`{name}` is {other}, and should be a word"))),
        }
    }

    /// The whole number of that name, if any; a word such as `64k` is read as a size.
    ///
    /// # Errors
    /// If the value is something else, or negative.
    pub fn whole(&self, name: &str) -> Result<Option<u64>, Error> {
        let wrong = |value: &Value| {
            Error::Experiment(format!(
                "`{name}` is {value}, and should be a whole number that is not negative"
            ))
        };
        match self.value(name) {
            None => Ok(None),
            Some(value @ Value::Whole(n)) => u64::try_from(n).map(Some).map_err(|_| wrong(&value)),
            Some(Value::Text(text)) => {
                let found = size(&text).and_then(|n| u64::try_from(n).ok());
                found.map(Some).ok_or_else(|| wrong(&Value::Text(text)))
            }
            Some(other) => Err(wrong(&other)),
        }
    }

    /// The number of that name, if any.
    ///
    /// # Errors
    /// If the value is not a number.
    pub fn real(&self, name: &str) -> Result<Option<f64>, Error> {
        match self.value(name) {
            None => Ok(None),
            Some(value) => match value.number().filter(|n| n.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(Error::Experiment(format!("`{name}` is {value}, and should be a number"))),
            },
        }
    }

    /// The truth value of that name, if any.
    ///
    /// # Errors
    /// If the value is not a truth value.
    pub fn truth(&self, name: &str) -> Result<Option<bool>, Error> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Truth(yes)) => Ok(Some(yes)),
            Some(other) => {
                Err(Error::Experiment(format!("`{name}` is {other}, and should be true or false")))
            }
        }
    }

    /// The list of words of that name, empty if there is none; a single word counts as a list of
    /// one.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn words(&self, name: &str) -> Result<Vec<String>, Error> {
        let wrong = || Error::Experiment(format!("`{name}` should be a list of words"));
        match self.settings.get(name) {
            None => Ok(self.text(name)?.into_iter().collect()),
            Some(toml::Value::String(word)) => Ok(vec![word.clone()]),
            Some(toml::Value::Array(list)) => {
                list.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
            }
            Some(_) => Err(wrong()),
        }
    }
}

/// See [`Point::key`].
pub fn key(coordinates: &[(String, Value)]) -> String {
    if coordinates.is_empty() {
        return "-".to_owned();
    }
    coordinates.iter().map(|(axis, value)| format!("{axis}={value}")).collect::<Vec<_>>().join(",")
}
