//! Parts of forms, each with its label.

use super::gate::Visitor;
use super::html::{Attributes, Html};

/// A form of a few buttons.
pub fn form(h: &mut Html, action: &str, visitor: &Visitor, inside: impl FnOnce(&mut Html)) {
    whole(h, action, visitor, &[], inside);
}

/// A form that is the content of its page.
pub fn page(h: &mut Html, action: &str, visitor: &Visitor, inside: impl FnOnce(&mut Html)) {
    whole(h, action, visitor, &[("class", "page")], inside);
}

fn whole(
    h: &mut Html,
    action: &str,
    visitor: &Visitor,
    more: Attributes<'_>,
    inside: impl FnOnce(&mut Html),
) {
    let attributes = [&[("method", "post"), ("action", action)], more].concat();
    h.tag("form", &attributes, |h| {
        hidden(h, "proof", &visitor.proof);
        inside(h);
    });
}

/// A value that goes with the form.
pub fn hidden(h: &mut Html, name: &str, value: &str) {
    h.void("input", &[("type", "hidden"), ("name", name), ("value", value)]);
}

/// A line of text. `hint` may be empty.
pub fn text(h: &mut Html, name: &str, label: &str, hint: &str, value: &str, more: Attributes<'_>) {
    let about = format!("{name}-hint");
    h.tag("div", &[("class", "field")], |h| {
        h.leaf("label", &[("for", name)], label);
        let own = [
            ("id", name),
            ("name", name),
            ("value", value),
            ("autocomplete", "off"),
            ("spellcheck", "false"),
        ];
        let hinted = [("aria-describedby", about.as_str())];
        let hinted: Attributes<'_> = if hint.is_empty() { &[] } else { &hinted };
        h.void("input", &[&own[..], hinted, more].concat());
        if !hint.is_empty() {
            h.leaf("p", &[("class", "hint"), ("id", &about)], hint);
        }
    });
}

/// One of several values.
pub fn choice(h: &mut Html, name: &str, label: &str, all: &[(String, String)], chosen: &str) {
    h.tag("div", &[("class", "field")], |h| {
        h.leaf("label", &[("for", name)], label);
        h.tag("select", &[("id", name), ("name", name)], |h| {
            for (value, text) in all {
                let attributes = [("value", value.as_str()), ("selected", "")];
                let attributes = if value == chosen { &attributes[..] } else { &attributes[..1] };
                h.leaf("option", attributes, text);
            }
        });
    });
}

/// A box to tick.
pub fn tick(h: &mut Html, name: &str, label: &str, is_ticked: bool) {
    h.tag("div", &[("class", "field tick")], |h| {
        let attributes =
            [("type", "checkbox"), ("id", name), ("name", name), ("value", "yes"), ("checked", "")];
        h.void("input", if is_ticked { &attributes[..] } else { &attributes[..4] });
        h.leaf("label", &[("for", name)], label);
    });
}

/// The button that sends the form.
pub fn button(h: &mut Html, text: &str) {
    h.tag("p", &[("class", "actions")], |h| h.leaf("button", &[], text));
}

/// A form with one small button, and values that go with it.
pub fn small(
    h: &mut Html,
    action: &str,
    visitor: &Visitor,
    values: &[(&str, &str)],
    text: &str,
    about: &str,
) {
    form(h, action, visitor, |h| {
        values.iter().for_each(|(name, value)| hidden(h, name, value));
        // Many buttons of a page have one text.
        h.leaf("button", &[("class", "small"), ("aria-label", &format!("{text} {about}"))], text);
    });
}
