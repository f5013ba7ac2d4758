//! Defines a setting: its name, form, default, when it applies, and its documentation. The tables
//! in `model`, `unit` and `iscsi_server::config` declare each setting once. The reader, flags,
//! `apply`, `check-config`, the reference page and the schema follow these tables.

use std::any::Any;
use std::fmt::Display;

use backing::size::Size;
use toml::Spanned;
use toml::de::DeValue;

use super::place::Place;
use super::problem::Problems;
use super::value::{Misfit, Value};

/// Time at which a change of a setting takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// As soon as it is applied.
    AtOnce,
    /// For connections that are made from then on.
    NewConnections,
    /// For logins from then on.
    NewLogins,
    /// When the daemon starts next.
    NextStart,
}

impl Applies {
    pub fn words(self) -> &'static str {
        match self {
            Self::AtOnce => "at once",
            Self::NewConnections => "for new connections",
            Self::NewLogins => "for new logins",
            Self::NextStart => "from the daemon's next start on",
        }
    }
}

/// A word that a setting takes, and its meaning.
pub type Word = (&'static str, &'static str);

/// The form of a value.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A whole number of a range.
    Number(u64, u64),
    /// Bytes of a range: a whole number, or text such as `"64M"`.
    Size(u64, u64),
    /// Bytes: one of these.
    Sizes(&'static [u64]),
    /// Seconds, with a fraction.
    Seconds,
    /// True or false; on the command line also the name alone.
    YesNo,
    Words(&'static [Word]),
    /// Text of so many bytes, described.
    Text(usize, usize, &'static str),
    /// So many printable ASCII characters, 1 at least.
    Printable(usize),
    /// A list; one element may stand alone.
    List(&'static Form),
    /// A table with the keys of this section.
    Table(&'static str),
    Either(&'static [Form]),
}

/// Kinds of units that take an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// Disks only.
    Disks,
    /// Objects only.
    Objects,
    All,
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, as users write it.
    pub name: &'static str,
    pub doc: &'static str,
    /// The form of its value.
    pub form: Form,
    /// Time at which a change takes effect, if that differs from its group.
    pub applies: Option<Applies>,
    /// An example to show when a required setting is missing; `None` for an optional one.
    pub required: Option<&'static str>,
    /// Meaning of leaving it out, if that is not a value.
    pub otherwise: Option<&'static str>,
    /// The flag of `stag serve` that goes before it.
    pub flag: Option<&'static str>,
    /// Advice for a value that does not fit, if the form does not imply it.
    pub hint: Option<&'static str>,
    /// The unit of a number.
    pub unit: &'static str,
    /// Kinds of units that take it, if it is an option of a unit.
    pub media: Media,
    /// Whether special code reads it, because its meaning depends on other settings.
    pub by_hand: bool,
}

macro_rules! rules {
    ($($rule:ident($($part:ident: $of:ty),*) = $form:expr;)+) => {
        $(pub const fn $rule($($part: $of),*) -> Setting {
            Setting::new($form)
        })+
    };
}

rules! {
    number(least: u64, most: u64) = Form::Number(least, most);
    size(least: u64, most: u64) = Form::Size(least, most);
    sizes(of: &'static [u64]) = Form::Sizes(of);
    seconds() = Form::Seconds;
    yes_no() = Form::YesNo;
    words(of: &'static [Word]) = Form::Words(of);
    text(what: &'static str) = Form::Text(0, usize::MAX, what);
    bytes(least: usize, most: usize, what: &'static str) = Form::Text(least, most, what);
    printable(most: usize) = Form::Printable(most);
    list(of: &'static Form) = Form::List(of);
    keys_of(section: &'static str) = Form::Table(section);
    either(of: &'static [Form]) = Form::Either(of);
}

/// Functions that give a setting a field of text.
macro_rules! with {
    ($($field:ident),+) => {
        $(pub const fn $field(self, text: &'static str) -> Self {
            Self { $field: Some(text), ..self }
        })+
    };
}

impl Setting {
    const fn new(form: Form) -> Self {
        Self {
            name: "",
            doc: "",
            form,
            applies: None,
            required: None,
            otherwise: None,
            flag: None,
            hint: None,
            unit: "",
            media: Media::Disks,
            by_hand: false,
        }
    }

    pub const fn called(self, name: &'static str, doc: &'static str, applies: Applies) -> Self {
        let applies = match self.applies {
            Some(own) => Some(own),
            None => Some(applies),
        };
        Self { name, doc, applies, ..self }
    }

    pub const fn applies(self, applies: Applies) -> Self {
        Self { applies: Some(applies), ..self }
    }

    pub const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub const fn of(self, media: Media) -> Self {
        Self { media, ..self }
    }

    pub const fn by_hand(self) -> Self {
        Self { by_hand: true, ..self }
    }

    with! { required, otherwise, flag, hint }

    pub fn doc(&self) -> &'static str {
        self.doc.trim()
    }

    /// Time at which a change takes effect.
    pub fn when(&self) -> Applies {
        self.applies.unwrap_or(Applies::AtOnce)
    }

    /// An element of it, of a list.
    pub fn element(&self) -> Self {
        let form = if let Form::List(form) = self.form { *form } else { self.form };
        Self { form, ..*self }
    }

    /// A value as short as it can be written.
    pub fn pretty(&self, value: Option<String>) -> Option<String> {
        let size = |text: String| text.parse().map_or(text, |bytes| Size(bytes).to_string());
        value.map(|text| if matches!(self.form, Form::Size(..)) { size(text) } else { text })
    }

    /// The text shown for no value.
    pub fn left_out(&self) -> &'static str {
        self.otherwise.unwrap_or("its default")
    }
}

/// A field of a group, whatever its type.
pub trait Cell {
    fn read(&mut self, setting: &Setting, found: &Spanned<DeValue<'_>>, at: &Place<'_>, told: &mut Problems);
    fn set(&mut self, setting: &Setting, text: &str) -> Result<(), Misfit>;
    fn show(&self) -> Option<String>;
    fn equals(&self, other: &dyn Cell) -> bool;
    fn copy_from(&mut self, other: &dyn Cell);
    fn any(&self) -> &dyn Any;
}

impl<T: Value> Cell for T {
    fn read(&mut self, setting: &Setting, found: &Spanned<DeValue<'_>>, at: &Place<'_>, told: &mut Problems) {
        if let Some(value) = T::read(setting, found, at, told) {
            *self = value;
        }
    }

    fn set(&mut self, setting: &Setting, text: &str) -> Result<(), Misfit> {
        *self = T::parse(text, setting)?;
        Ok(())
    }

    fn show(&self) -> Option<String> {
        T::show(self)
    }

    fn equals(&self, other: &dyn Cell) -> bool {
        other.any().downcast_ref() == Some(self)
    }

    fn copy_from(&mut self, other: &dyn Cell) {
        if let Some(other) = other.any().downcast_ref::<T>() {
            *self = other.clone();
        }
    }

    fn any(&self) -> &dyn Any {
        self
    }
}

/// A struct of settings, one field each, in the order of its table.
pub trait Group: Default {
    /// The section of a file that has them, as its header is written.
    const SECTION: &'static str;
    /// The section's documentation.
    const ABOUT: &'static str;
    /// Settings with a field each.
    const SETTINGS: &'static [Setting];
    /// Keys without a field: special code turns them into other values.
    const KEYS: &'static [Setting];

    fn cells(&self) -> Vec<&dyn Cell>;
    fn cells_mut(&mut self) -> Vec<&mut dyn Cell>;

    /// The settings whose values differ in `new`.
    fn differences(&self, new: &Self) -> Vec<Difference> {
        let cells = Self::SETTINGS.iter().zip(self.cells().into_iter().zip(new.cells()));
        cells
            .filter(|(_, (old, new))| !old.equals(*new))
            .map(|(setting, (old, new))| {
                let show = |cell: &dyn Cell| setting.pretty(cell.show()).unwrap_or(setting.left_out().into());
                Difference { setting: *setting, before: show(old), now: show(new) }
            })
            .collect()
    }

    /// Settings that differ from their defaults, as `name value`, except those named in `but`.
    fn said(&self, but: &[&str]) -> Vec<String> {
        let said = Self::default().differences(self).into_iter();
        let said = said.filter(|found| !but.contains(&found.setting.name));
        said.map(|found| format!("{} {}", found.setting.name, found.now)).collect()
    }

    /// Restores the old values of settings that apply from the next start on.
    fn until_next_start(&mut self, old: &Self) {
        for ((setting, cell), old) in Self::SETTINGS.iter().zip(self.cells_mut()).zip(old.cells()) {
            if setting.when() == Applies::NextStart {
                cell.copy_from(old);
            }
        }
    }
}

/// The setting of a group that is called `name`.
pub fn setting<G: Group>(name: &str) -> Setting {
    let mut all = G::SETTINGS.iter().chain(G::KEYS);
    let found = all.find(|setting| setting.name == name);
    debug_assert!(found.is_some(), "{} has no {name}", G::SECTION);
    found.copied().unwrap_or(text(""))
}

/// Reads the flag of the setting `name` of a group.
pub fn flag<G: Group, T: Value + Send + Sync>(
    name: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| T::parse(text, &setting::<G>(name)).map_err(|misfit| misfit.instead)
}

/// A setting whose value differs between two configurations.
#[derive(Clone, Debug)]
pub struct Difference {
    pub setting: Setting,
    /// The old and the new value, in words; never a secret.
    before: String,
    now: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { setting, before, now } = self;
        // Secrets and what has no short words look alike.
        match before == now {
            true => f.write_str(setting.name),
            false => write!(f, "{}: {now} instead of {before}", setting.name),
        }
    }
}

/// The table of a group whose struct there is: rows of a name, a field and how it is written.
macro_rules! table {
    (
        $(#[doc = $about:literal])+ pub struct $group:ident in $section:literal, $applies:ident {
            $($(#[doc = $doc:literal])+ $name:literal $field:ident: $type:ty = $default:expr, $rule:expr;)*
        }
        $(keys { $($(#[doc = $key_doc:literal])+ $key:literal $key_rule:expr;)* })?
    ) => {
        impl $crate::config::settings::Group for $group {
            const SECTION: &'static str = $section;
            const ABOUT: &'static str = concat!($($about),+);
            const SETTINGS: &'static [Setting] =
                &[$(($rule).called($name, concat!($($doc),+), Applies::$applies)),*];
            const KEYS: &'static [Setting] =
                &[$($(($key_rule).called($key, concat!($($key_doc),+), Applies::$applies)),*)?];

            fn cells(&self) -> Vec<&dyn Cell> {
                vec![$(&self.$field),*]
            }

            fn cells_mut(&mut self) -> Vec<&mut dyn Cell> {
                vec![$(&mut self.$field),*]
            }
        }
    };
}
pub(crate) use table;

/// A struct of settings with its table. `parts` are fields that are no settings.
macro_rules! settings {
    (
        $(#[doc = $about:literal])+ pub struct $group:ident in $section:literal, $applies:ident {
            $($(#[doc = $doc:literal])+ $name:literal $field:ident: $type:ty = $default:expr, $rule:expr;)*
        }
        $(keys { $($(#[doc = $key_doc:literal])+ $key:literal $key_rule:expr;)* })?
        $(parts { $($(#[doc = $part_doc:literal])+ $part:ident: $part_type:ty,)* })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $group {
            $($(#[doc = $doc])+ pub $field: $type,)*
            $($($(#[doc = $part_doc])+ pub $part: $part_type,)*)?
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: $default,)* $($($part: Default::default(),)*)? }
            }
        }

        $crate::config::settings::table! {
            $(#[doc = $about])+ pub struct $group in $section, $applies {
                $($(#[doc = $doc])+ $name $field: $type = $default, $rule;)*
            }
            $(keys { $($(#[doc = $key_doc])+ $key $key_rule;)* })?
        }
    };
}
pub(crate) use settings;

/// A section of a file without a struct of its own; special code reads its keys.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its header, or the name of a table that is a value.
    pub header: &'static str,
    /// The section's documentation.
    pub about: &'static str,
    pub keys: &'static [Setting],
}

/// Tables of sections without a struct.
macro_rules! sections {
    ($(
        $(#[doc = $about:literal])+ $section:literal, $applies:ident {
            $($(#[doc = $doc:literal])+ $key:literal $rule:expr;)*
        }
    )+) => {
        /// Sections that special code reads.
        pub const BY_HAND: &[$crate::config::settings::Section] = &[$($crate::config::settings::Section {
            header: $section,
            about: concat!($($about),+),
            keys: &[$(($rule).called($key, concat!($($doc),+), Applies::$applies)),*],
        }),+];
    };
}
pub(crate) use sections;
