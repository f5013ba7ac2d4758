//! The types of settings' values: how each is read from text or from a file, and how it is shown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use backing::size::{Size, parse_size};
use iscsi_server::config::Congestion;
use toml::Spanned;
use toml::de::DeValue;

use super::place::Place;
use super::problem::{Problems, mismatch};
use super::settings::{Form, Setting};
use crate::suggest;

/// The longest of [`Form::Seconds`].
const LONGEST: Duration = Duration::from_secs(3600);

/// The reason why a value does not fit.
#[derive(Debug)]
pub struct Misfit {
    /// The mistake; `None` if the value is merely none of those that fit.
    pub what: Option<String>,
    /// The advice: text to write instead.
    pub instead: String,
}

impl Misfit {
    /// For `text` that is none of the values of `setting`.
    pub fn new(setting: &Setting, text: &str) -> Self {
        let instead = setting.hint.map_or_else(|| instead(setting, text, ""), str::to_owned);
        Self { what: None, instead }
    }
}

/// Advice about the values that fit `setting`; words stand in `quotes`.
fn instead(setting: &Setting, text: &str, quotes: &str) -> String {
    match setting.form {
        Form::Number(least, u64::MAX) => format!("write {least} or more"),
        Form::Number(least, most) => format!("write {least} to {most}"),
        Form::Size(least, u64::MAX) => format!("write {} or more", Size(least)),
        Form::Size(least, most) => format!("write {least} to {most} bytes"),
        Form::Sizes(of) => {
            format!("write {}", of.iter().map(u64::to_string).collect::<Vec<_>>().join(" or "))
        }
        Form::Seconds => "write seconds, 0 to 3600, as in 0.5".to_owned(),
        Form::YesNo => "write yes or no".to_owned(),
        Form::Words(words) => match suggest::nearest(text, words.iter().map(|(word, _)| *word)) {
            Some(near) => format!("did you mean {quotes}{near}{quotes}?"),
            None => {
                let words = words.iter().map(|(word, _)| format!("{quotes}{word}{quotes}"));
                format!("write {}", words.collect::<Vec<_>>().join(" or "))
            }
        },
        Form::Text(least, most, _) => format!("write {least} to {most} bytes of text"),
        Form::Printable(most) => format!("write 1 to {most} printable ASCII characters"),
        Form::List(_) | Form::Table(_) | Form::Either(_) => "write it in a file".to_owned(),
    }
}

/// The type of a setting's value.
pub trait Value: Sized + Clone + PartialEq + 'static {
    /// From text, as the command line has it.
    ///
    /// # Errors
    /// `text` does not fit.
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit>;

    /// From a file; `None` if it does not fit, which has been told then.
    fn read(
        setting: &Setting,
        found: &Spanned<DeValue<'_>>,
        _: &Place<'_>,
        problems: &mut Problems,
    ) -> Option<Self> {
        let text = text_of(setting, found, problems)?;
        let misfit = match Self::parse(&text, setting) {
            Ok(value) => return Some(value),
            Err(misfit) => misfit,
        };
        let name = setting.name;
        let what = misfit.what.unwrap_or_else(|| match (found.get_ref(), setting.form) {
            (DeValue::String(_), Form::Words(_)) => format!("{name} = \"{text}\" is none of its values"),
            (DeValue::String(_), Form::Text(least, most, _)) => format!("{name} has {least} to {most} bytes"),
            (DeValue::String(_), _) => format!("{name} = \"{text}\" is out of range"),
            _ => format!("{name} = {text} is out of range"),
        });
        let instead = match setting.form {
            Form::Words(_) => instead(setting, &text, "\""),
            _ => misfit.instead,
        };
        problems.error(&found.span(), what, instead);
        None
    }

    /// As people write it; `None` where nothing is said.
    fn show(&self) -> Option<String>;
}

/// The text of a value of the type that the setting's form has in a file.
fn text_of(setting: &Setting, found: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<String> {
    let wanted = match (setting.form, found.get_ref()) {
        (Form::Number(..) | Form::Size(..), DeValue::Integer(number)) => {
            let value = u64::from_str_radix(number.as_str(), number.radix());
            return Some(value.map_or_else(|_| number.as_str().to_owned(), |value| value.to_string()));
        }
        (Form::Number(..), _) => "a whole number",
        (Form::YesNo, DeValue::Boolean(yes)) => return Some(if *yes { "yes" } else { "no" }.to_owned()),
        (Form::YesNo, _) => "true or false",
        (_, DeValue::String(text)) => return Some(text.to_string()),
        (Form::Size(..), _) => "a whole number",
        _ => "a string in quotes",
    };
    mismatch(setting.name, wanted, found.get_ref(), found.span(), problems)
}

/// The whole number that `text` is, if it fits.
fn whole(text: &str, setting: &Setting) -> Result<u64, Misfit> {
    let fits = |value: &u64| match setting.form {
        Form::Number(least, most) | Form::Size(least, most) => (least..=most).contains(value),
        Form::Sizes(of) => of.contains(value),
        _ => true,
    };
    let value = match setting.form {
        Form::Size(..) | Form::Sizes(_) => parse_size(text).map_err(|error| Misfit {
            what: Some(error.to_string()),
            instead: format!("write {} = \"64M\", for example", setting.name),
        })?,
        _ => text.parse().map_err(|_| Misfit::new(setting, text))?,
    };
    Some(value).filter(fits).ok_or_else(|| Misfit::new(setting, text))
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
                whole(text, setting)?.try_into().map_err(|_| Misfit::new(setting, text))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+};
}
numbers!(u8, u16, u32, u64);

/// A count or bytes. Where 0 fits, it is no bound.
impl Value for usize {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        match whole(text, setting)? {
            0 => Ok(usize::MAX),
            value => value.try_into().map_err(|_| Misfit::new(setting, text)),
        }
    }

    fn show(&self) -> Option<String> {
        Some(if *self == usize::MAX { "0".to_owned() } else { self.to_string() })
    }
}

impl Value for Duration {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        match setting.form {
            Form::Seconds => {
                seconds(text).filter(|fits| *fits <= LONGEST).ok_or_else(|| Misfit::new(setting, text))
            }
            _ => whole(text, setting).map(Self::from_secs),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.as_secs_f64().to_string())
    }
}

/// Seconds, with or without a fraction of up to nine digits.
fn seconds(value: &str) -> Option<Duration> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let digits = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit())
    };
    if !digits(whole, 6) || !digits(fraction, 9) {
        return None;
    }
    let nanos = format!("{fraction:0<9}").parse().ok()?;
    Some(Duration::new(whole.parse().ok()?, nanos))
}

impl Value for bool {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        match text {
            "" | "yes" | "true" | "on" | "1" => Ok(true),
            "no" | "false" | "off" | "0" => Ok(false),
            _ => Err(Misfit::new(setting, text)),
        }
    }

    fn show(&self) -> Option<String> {
        Some(if *self { "yes" } else { "no" }.to_owned())
    }
}

impl Value for String {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        let fits = match setting.form {
            Form::Printable(most) => {
                (1..=most).contains(&text.len()) && text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
            }
            Form::Text(least, most, _) => (least..=most).contains(&text.len()),
            _ => true,
        };
        fits.then(|| text.to_owned()).ok_or_else(|| Misfit::new(setting, text))
    }

    fn show(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.clone())
    }
}

/// In a file, a relative path starts from the file's directory.
impl Value for PathBuf {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        if text.is_empty() { Err(Misfit::new(setting, text)) } else { Ok(text.into()) }
    }

    fn read(
        setting: &Setting,
        found: &Spanned<DeValue<'_>>,
        at: &Place<'_>,
        problems: &mut Problems,
    ) -> Option<Self> {
        Some(at.directory.join(text_of(setting, found, problems)?))
    }

    fn show(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

impl<T: Value> Value for Option<T> {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        T::parse(text, setting).map(Some)
    }

    fn read(
        setting: &Setting,
        found: &Spanned<DeValue<'_>>,
        at: &Place<'_>,
        problems: &mut Problems,
    ) -> Option<Self> {
        T::read(setting, found, at, problems).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }
}

impl<T: Value> Value for Vec<T> {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        Err(Misfit::new(setting, text))
    }

    fn read(
        setting: &Setting,
        found: &Spanned<DeValue<'_>>,
        at: &Place<'_>,
        problems: &mut Problems,
    ) -> Option<Self> {
        let element = setting.element();
        let elements: Vec<&Spanned<DeValue<'_>>> = match found.get_ref() {
            DeValue::Array(elements) => elements.iter().collect(),
            _ => vec![found],
        };
        Some(elements.into_iter().filter_map(|one| T::read(&element, one, at, problems)).collect())
    }

    fn show(&self) -> Option<String> {
        let all: Vec<String> = self.iter().filter_map(T::show).collect();
        (!self.is_empty()).then(|| format!("[{}]", all.join(", ")))
    }
}

/// The words of a type, each with its value and its meaning.
macro_rules! word_values {
    ($($type:ty as $table:ident { $($word:literal = $value:path, $doc:literal;)+ })+) => {$(
        pub const $table: &[$crate::config::settings::Word] = &[$(($word, $doc)),+];

        impl $crate::config::value::Value for $type {
            fn parse(text: &str, setting: &$crate::config::settings::Setting) -> Result<Self, $crate::config::value::Misfit> {
                match text {
                    $($word => Ok($value),)+
                    _ => Err($crate::config::value::Misfit::new(setting, text)),
                }
            }

            fn show(&self) -> Option<String> {
                match self {
                    $($value => Some($word.to_owned()),)+
                    #[allow(unreachable_patterns)]
                    _ => None,
                }
            }
        }
    )+};
}
pub(crate) use word_values;

impl Value for Congestion {
    fn parse(text: &str, _: &Setting) -> Result<Self, Misfit> {
        Self::new(text).ok_or_else(|| Misfit {
            what: Some(format!("`{text}` is the name of no congestion control")),
            instead: "write one of net.ipv4.tcp_available_congestion_control, such as \"bbr\"".to_owned(),
        })
    }

    fn show(&self) -> Option<String> {
        Some(self.name().to_owned())
    }
}

impl Value for SocketAddr {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        super::address(text).ok_or_else(|| Misfit::new(setting, text))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Types that are written as a table, and shown without secrets.
macro_rules! table_values {
    ($($type:ty, $read:expr, $show:expr;)+) => {$(
        impl $crate::config::value::Value for $type {
            fn parse(text: &str, setting: &$crate::config::settings::Setting) -> Result<Self, $crate::config::value::Misfit> {
                Err($crate::config::value::Misfit::new(setting, text))
            }

            fn read(
                _: &$crate::config::settings::Setting,
                found: &toml::Spanned<toml::de::DeValue<'_>>,
                at: &$crate::config::Place<'_>,
                problems: &mut $crate::config::problem::Problems,
            ) -> Option<Self> {
                $read(found, at, problems)
            }

            fn show(&self) -> Option<String> {
                Some($show(self))
            }
        }
    )+};
}
pub(crate) use table_values;
