//! Texts about the settings, generated from their tables alone: the reference page, the man page
//! stag.toml(5), the JSON Schema, and the help of flags and of units' options.

use std::fmt::Write;

use iscsi_server::config::{IserConfig, Limits};
use roff::{Inline, Roff, bold, roman};
use serde_json::{Map, Value, json};

use super::model::{
    Acl, Alua, AluaGroup, BY_HAND, Client, Daemon, Export, GatewayMember, Gateways, Http, Isns, Nfs, Portal,
    Target,
};
use super::settings::{Cell, Form, Group, Media, Setting, Word};
use crate::unit::Options;
use crate::unit::limits::Limits as Service;

/// A section with its keys, and the value of each that is left out.
struct Described {
    header: &'static str,
    about: &'static str,
    keys: Vec<(Setting, Option<String>)>,
}

impl Described {
    fn of<G: Group>() -> Self {
        let own = G::default();
        let value = |(setting, cell): (&Setting, &dyn Cell)| {
            (*setting, setting.pretty(cell.show()).map(|text| in_a_file(setting, &text)))
        };
        let keys = G::SETTINGS.iter().zip(own.cells()).map(value);
        let keys = keys.chain(G::KEYS.iter().map(|key| (*key, None))).collect();
        Self { header: G::SECTION, about: G::ABOUT.trim(), keys }
    }
}

/// All sections, in the order of a file; those that stand in values last.
fn sections() -> Vec<Described> {
    let by_hand = |header: &'static str| {
        BY_HAND.iter().filter(move |section| section.header == header).map(|section| Described {
            header: section.header,
            about: section.about.trim(),
            keys: section.keys.iter().map(|key| (*key, None)).collect(),
        })
    };
    let mut all = vec![
        Described::of::<Daemon>(),
        Described::of::<Portal>(),
        Described::of::<Limits>(),
        Described::of::<IserConfig>(),
        Described::of::<Isns>(),
        Described::of::<Http>(),
        Described::of::<Gateways>(),
        Described::of::<GatewayMember>(),
    ];
    all.extend(by_hand("[discovery]"));
    all.extend([Described::of::<Target>(), Described::of::<Alua>(), Described::of::<AluaGroup>()]);
    all.extend(by_hand("[[target.unit]]"));
    all.extend([Described::of::<Options>(), Described::of::<Service>(), Described::of::<Acl>()]);
    all.extend([Described::of::<Nfs>(), Described::of::<Export>(), Described::of::<Client>()]);
    all.extend(["auth", "users", "redirect", "luns"].into_iter().flat_map(by_hand));
    all
}

/// `text` as it is written in a file.
fn in_a_file(setting: &Setting, text: &str) -> String {
    let bare = text.parse::<f64>().is_ok();
    match setting.form {
        Form::YesNo => if text == "yes" { "true" } else { "false" }.to_owned(),
        Form::Number(..) | Form::Sizes(_) | Form::Seconds => text.to_owned(),
        Form::Size(..) if bare => text.to_owned(),
        _ => format!("\"{text}\""),
    }
}

/// The reference page of the keys of a configuration, as Markdown.
pub fn page() -> String {
    let mut out = String::from(
        "# Keys of the configuration\n\n\
         You need this page when you look up one key. `stag check-config --keys` writes it. \
         [configuration.md](configuration.md) explains how the keys work together.\n\n\
         A size is a whole number of bytes or text such as `\"64M\"` (k = 1024). \
         A list of one element may be written without brackets.\n",
    );
    for section in sections() {
        let _ = write!(out, "\n## {}\n\n{}\n", title_of(section.header), section.about);
        let _ = write!(
            out,
            "\n| key | value | if left out | a change applies | meaning |\n|---|---|---|---|---|\n"
        );
        for (key, default) in &section.keys {
            let left_out = left_out(key, default.as_deref());
            let flag = key.flag.map_or_else(String::new, |flag| format!(" Flag: `{flag}`."));
            let words = words_of(key.form).iter().map(|(word, what)| format!("<br>`{word}`: {what}"));
            let meaning = format!("{}{flag}{}", key.doc(), words.collect::<String>());
            let _ = writeln!(
                out,
                "| `{}` | {} | {left_out} | {} | {} |",
                key.name,
                value_of(key.form, key.unit),
                key.when().words(),
                meaning.replace('|', "\\|"),
            );
        }
    }
    out
}

/// The man page stag.toml(5), as roff.
pub fn manual() -> String {
    let mut page = Roff::new();
    page.control("TH", ["STAG.TOML", "5", "", concat!("stag ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman("stag.toml - configuration of stag serve")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text(inline(
        "`stag serve --config FILE` and `stag apply FILE` read this file. It is TOML. \
         `stag check-config FILE` reports every mistake with its line. \
         A relative path counts from the directory of the file.",
    ));
    page.control("PP", []);
    page.text(inline(
        "A size is a whole number of bytes or text such as `\"64M\"` (k = 1024). \
         A list of one element may be written without brackets.",
    ));
    for section in sections() {
        page.control("SH", [title_of(section.header).replace('`', "").as_str()]);
        page.text(inline(section.about));
        for (key, default) in &section.keys {
            page.control("TP", []);
            page.text([bold(key.name), roman(" = "), roman(plain(&value_of(key.form, key.unit)))]);
            page.text(inline(key.doc()));
            for (word, what) in words_of(key.form) {
                page.control("br", []);
                page.text([bold(*word), roman(format!(": {what}"))]);
            }
            page.control("br", []);
            let facts = format!(
                "If left out: {}. A change applies {}.",
                left_out(key, default.as_deref()),
                key.when().words()
            );
            page.text(inline(&facts));
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("stag-serve"),
        roman("(1), "),
        bold("stag-check-config"),
        roman("(1), "),
        bold("stag-apply"),
        roman("(1), "),
        bold("stag"),
        roman("(7)"),
    ]);
    page.to_roff()
}

/// `text`, Markdown, for a man page: code is bold, and of a link only its text is left.
pub fn inline(text: &str) -> Vec<Inline> {
    let parts = without_links(text);
    let parts = parts.split('`').enumerate();
    parts.map(|(i, part)| if i % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// `text` without Markdown's marks.
fn plain(text: &str) -> String {
    without_links(text).replace('`', "")
}

fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (head, shown) = before.rsplit_once('[').unwrap_or((before, ""));
        out.push_str(head);
        out.push_str(shown);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// The title of the section with this header, as Markdown.
fn title_of(header: &str) -> String {
    match header {
        "" => "Top of the file".to_owned(),
        header if header.contains(' ') => format!("{}{}", header[..1].to_uppercase(), &header[1..]),
        header if header.starts_with('[') => format!("`{header}`"),
        header => format!("Table `{header}`"),
    }
}

/// What holds without the key, as Markdown.
fn left_out(key: &Setting, default: Option<&str>) -> String {
    match (key.required, default, key.otherwise) {
        (Some(_), ..) => "required".to_owned(),
        (_, _, Some(otherwise)) => otherwise.to_owned(),
        (_, Some(value), None) => format!("`{value}`"),
        (_, None, None) => "nothing".to_owned(),
    }
}

fn words_of(form: Form) -> &'static [Word] {
    match form {
        Form::Words(words) => words,
        Form::List(form) => words_of(*form),
        _ => &[],
    }
}

/// The form of a value, in words.
fn value_of(form: Form, unit: &str) -> String {
    let size = |bytes: u64| backing::size::Size(bytes).to_string();
    match form {
        Form::Number(least, u64::MAX) => format!("{least} or more"),
        Form::Number(least, most) => {
            format!("{least} to {most}{}{unit}", if unit.is_empty() { "" } else { " " })
        }
        Form::Size(_, u64::MAX) => "a size".to_owned(),
        Form::Size(least, most) if most % 1024 == 1023 => {
            format!("{} to less than {}", size(least), size(most + 1))
        }
        Form::Size(least, most) => format!("{} to {}", size(least), size(most)),
        Form::Sizes(of) => of.iter().map(u64::to_string).collect::<Vec<_>>().join(" or "),
        Form::Seconds => "seconds, as in 0.5".to_owned(),
        Form::YesNo => "true or false".to_owned(),
        Form::Words(words) => {
            words.iter().map(|(word, _)| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
        }
        Form::Text(_, 255, "text") => "text, 255 bytes at most".to_owned(),
        Form::Text(_, _, what) => what.to_owned(),
        Form::Printable(most) => format!("text, {most} ASCII characters at most"),
        Form::List(form) => format!("list: {}", value_of(*form, "")),
        Form::Table(section) if section.starts_with('[') => format!("table `{section}`"),
        Form::Table(section) => format!("table [`{section}`](#table-{section})"),
        Form::Either(forms) => forms.iter().map(|form| value_of(*form, "")).collect::<Vec<_>>().join(", or "),
    }
}

/// A JSON Schema (draft 2020-12) of a configuration as editors use it for TOML.
pub fn schema() -> Value {
    let sections = sections();
    let mut defs = Map::new();
    for section in &sections {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (key, default) in &section.keys {
            // A table below has its header of its own.
            let mut value = of_form(key.form);
            value["description"] = key.doc().into();
            // A required key has no default, though its field begins with some value.
            let default = default.as_ref().filter(|_| key.required.is_none());
            if let Some(default) = default.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
                value["default"] = default;
            }
            properties.insert(key.name.to_owned(), value);
            required.extend(key.required.map(|_| key.name));
        }
        let table = json!({
            "type": "object",
            "description": section.about,
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        defs.insert(name_of(section.header).to_owned(), table);
    }
    // An option of a unit is a key of the unit. A limit of service is one of ACLs and clients too.
    for (of, into) in [
        (Options::SECTION, "target.unit"),
        (Service::SECTION, "target.unit"),
        (Service::SECTION, "target.acl"),
        (Service::SECTION, "export.client"),
    ] {
        let keys = defs[of]["properties"].as_object().cloned().unwrap_or_default();
        keys.into_iter().for_each(|(name, value)| defs[into]["properties"][name] = value);
    }
    defs.remove(Options::SECTION);
    defs.remove(Service::SECTION);
    // `[[target.unit]]` is a list of tables in `[[target]]`.
    for header in sections.iter().map(|section| section.header).filter(|header| header.starts_with('[')) {
        let path = name_of(header);
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        let here = of_form(Form::Table(header));
        let value = if header.starts_with("[[") { json!({ "type": "array", "items": here }) } else { here };
        defs[parent]["properties"][name] = value;
    }
    let top = defs.remove("").unwrap_or_default();
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of stag serve",
        "$defs": defs,
    });
    for part in ["type", "properties", "additionalProperties"] {
        schema[part] = top[part].clone();
    }
    schema
}

/// A section's header without brackets.
fn name_of(header: &str) -> &str {
    header.trim_matches(['[', ']'])
}

fn of_form(form: Form) -> Value {
    let range = |least: u64, most: u64| match most {
        u64::MAX => json!({ "type": "integer", "minimum": least }),
        most => json!({ "type": "integer", "minimum": least, "maximum": most }),
    };
    match form {
        Form::Number(least, most) => range(least, most),
        Form::Size(least, most) => json!({ "anyOf": [range(least, most), { "type": "string" }] }),
        Form::Sizes(of) => json!({ "enum": of }),
        Form::Seconds => json!({ "type": "number", "minimum": 0, "maximum": 3600 }),
        Form::YesNo => json!({ "type": "boolean" }),
        Form::Words(words) => json!({ "enum": words.iter().map(|(word, _)| word).collect::<Vec<_>>() }),
        Form::Text(least, usize::MAX, _) => json!({ "type": "string", "minLength": least }),
        Form::Text(least, most, _) => json!({ "type": "string", "minLength": least, "maxLength": most }),
        Form::Printable(most) => json!({ "type": "string", "minLength": 1, "maxLength": most }),
        Form::List(form) => {
            let one = of_form(*form);
            json!({ "anyOf": [{ "type": "array", "items": one.clone() }, one] })
        }
        Form::Table(section) => json!({ "$ref": format!("#/$defs/{}", name_of(section)) }),
        Form::Either(forms) => {
            json!({ "anyOf": forms.iter().map(|form| of_form(*form)).collect::<Vec<_>>() })
        }
    }
}

/// The help of the flag that stands for the setting `name`.
pub fn help<G: Group>(name: &str) -> String {
    let section = Described::of::<G>();
    let Some((setting, default)) = section.keys.iter().find(|(setting, _)| setting.name == name) else {
        return String::new();
    };
    let words: Vec<String> =
        words_of(setting.form).iter().map(|(word, what)| format!("{word} ({what})")).collect();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    let default = default
        .as_ref()
        .map_or_else(String::new, |value| format!(" [default: {}{}]", value.trim_matches('"'), setting.unit));
    format!("{}{words}{default}", setting.doc().trim_end_matches('.'))
}

/// The options of a unit, for the help of the command line.
pub fn options() -> String {
    let mut out = String::new();
    let mut section = |title: &str, media: fn(Media) -> bool| {
        out += title;
        for setting in crate::unit::options::all().filter(|setting| media(setting.media)) {
            let value = match setting.form {
                Form::YesNo => String::new(),
                Form::Words(words) => {
                    format!("={}", words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join("|"))
                }
                Form::Sizes(of) => {
                    format!("={}", of.iter().map(u64::to_string).collect::<Vec<_>>().join("|"))
                }
                Form::Size(..) => "=SIZE".to_owned(),
                Form::Number(..) => "=N".to_owned(),
                Form::Seconds => "=SECONDS".to_owned(),
                _ => "=TEXT".to_owned(),
            };
            let otherwise = setting.otherwise.filter(|otherwise| *otherwise != "no");
            let otherwise = otherwise.map_or_else(String::new, |otherwise| format!(" [{otherwise}]"));
            let name = format!("{}{value}", setting.name);
            let doc = format!("{}{otherwise}", setting.doc().trim_end_matches('.'));
            let words = words_of(setting.form).iter().map(|(word, what)| format!("{word}: {what}"));
            let mut lines = std::iter::once(doc).chain(words).flat_map(|text| wrapped(&text, 76));
            let first = if name.len() < 20 { lines.next().unwrap_or_default() } else { String::new() };
            out += format!("  {name:<20}{first}").trim_end();
            lines.for_each(|line| out += &format!("\n{:22}{line}", ""));
            out += "\n";
        }
    };
    section(
        "Options of a unit, after its path and separated by commas (a comma of the path is written \\,):\n",
        |media| media != Media::Objects,
    );
    section("Options of objects, osd:DIR, beside their names and limits:\n", |media| media == Media::Objects);
    out
}

/// The keys of the section `header`; all of them without one.
#[cfg(test)]
pub fn keys(header: Option<&str>) -> Vec<Setting> {
    // Options and limits that an ACL or a unit takes besides its own keys.
    let more: &[&str] = match header {
        Some("[[target.unit]]") => &[Options::SECTION, Service::SECTION],
        Some("[[target.acl]]" | "[[export.client]]") => &[Service::SECTION],
        _ => &[],
    };
    let of = |section: &Described| {
        header.is_none_or(|header| header == section.header) || more.contains(&section.header)
    };
    sections().into_iter().filter(of).flat_map(|section| section.keys).map(|(key, _)| key).collect()
}

/// `text` in lines of `width` characters at most.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = word.to_owned(),
            Some(line) if line.chars().count() + word.chars().count() < width => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_keys_is_the_generated_one() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/configuration-keys.md");
        let committed = std::fs::read_to_string(file).unwrap();
        assert!(
            committed == page(),
            "write it again: stag check-config --keys > docs/src/reference/configuration-keys.md"
        );
    }

    #[test]
    fn the_man_page_has_every_key_and_no_markdown() {
        let page = manual();
        for section in sections() {
            for (key, _) in &section.keys {
                let written = key.name.replace('-', "\\-");
                assert!(page.contains(&format!("\\fB{written}\\fR = ")), "{} {}", section.header, key.name);
            }
        }
        assert!(!page.contains('`') && !page.contains("]("), "{page}");
    }

    #[test]
    fn every_setting_has_words_of_its_own() {
        for section in sections() {
            assert!(!section.about.is_empty(), "{}", section.header);
            for (key, default) in &section.keys {
                let name = format!("{} {}", section.header, key.name);
                assert!(key.doc().ends_with(['.', '…']), "{name}: {}", key.doc());
                let told = default.is_some() || key.required.is_some() || key.otherwise.is_some();
                assert!(told, "{name}: what holds if it is left out?");
            }
        }
    }

    #[test]
    fn the_schema_knows_every_key_where_it_stands() {
        let schema = schema();
        let unit = &schema["$defs"]["target.unit"];
        assert_eq!(unit["required"], json!(["lun", "path"]));
        assert_eq!(unit["properties"]["bs"]["enum"], json!([512, 4096]));
        assert_eq!(unit["properties"]["iops"]["minimum"], 1);
        assert_eq!(schema["properties"]["limits"]["$ref"], "#/$defs/limits");
        assert_eq!(schema["properties"]["target"]["items"]["$ref"], "#/$defs/target");
        let limits = &schema["$defs"]["limits"]["properties"];
        assert_eq!(
            (&limits["nop-interval"]["default"], &limits["max-burst"]["default"]),
            (&json!(10), &json!("1M"))
        );
        let target = schema["$defs"]["target"]["properties"].as_object().unwrap();
        for name in ["iqn", "identity", "unit", "acl", "alua"] {
            assert!(target.contains_key(name), "{name}");
        }
        assert!(schema["$defs"]["target.alua"]["properties"]["group"].is_object());
    }
}
