//! A writer of HTML. It is the only place that writes markup: names of tags and attributes are
//! literals, and all other text is escaped.

/// A document, or a part of one.
#[derive(Default)]
pub struct Html {
    text: String,
}

/// Names and values of attributes.
pub type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Html {
    /// A document, with nothing but its first line.
    pub fn document() -> Self {
        Self { text: "<!doctype html>\n".to_owned() }
    }

    /// The text of the document.
    pub fn finish(self) -> String {
        self.text
    }

    /// Text.
    pub fn text(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.text.push_str("&amp;"),
                '<' => self.text.push_str("&lt;"),
                '>' => self.text.push_str("&gt;"),
                '"' => self.text.push_str("&quot;"),
                '\'' => self.text.push_str("&#39;"),
                '\n' | '\t' => self.text.push(character),
                // HTML has no other control characters, not even as references.
                other if other.is_control() => self.text.push('\u{fffd}'),
                other => self.text.push(other),
            }
        }
    }

    /// A tag that ends at once, such as `input`.
    pub fn void(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.text.push('<');
        self.text.push_str(name);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.text(value);
            self.text.push('"');
        }
        self.text.push('>');
    }

    /// An element, with what `inside` writes in it.
    pub fn tag(&mut self, name: &'static str, attributes: Attributes<'_>, inside: impl FnOnce(&mut Self)) {
        self.void(name, attributes);
        inside(self);
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push('>');
    }

    /// An element with text.
    pub fn leaf(&mut self, name: &'static str, attributes: Attributes<'_>, text: &str) {
        self.tag(name, attributes, |h| h.text(text));
    }

    /// A paragraph.
    pub fn p(&mut self, text: &str) {
        self.leaf("p", &[], text);
    }

    /// A link to a path of this daemon.
    pub fn link(&mut self, path: &str, text: &str) {
        self.leaf("a", &[("href", path)], text);
    }

    /// A table with a caption. Heads that begin with `#` are those of numbers. Without rows it is
    /// the sentence `none`.
    pub fn table<T>(
        &mut self,
        caption: &str,
        heads: &[&str],
        none: &str,
        rows: &[T],
        mut row: impl FnMut(&mut Row<'_>, &T),
    ) {
        if rows.is_empty() {
            return self.p(none);
        }
        // It scrolls by itself on a narrow screen, by keys too.
        let wide = [("class", "wide"), ("tabindex", "0"), ("role", "region"), ("aria-label", caption)];
        self.tag("div", &wide, |h| {
            h.tag("table", &[], |h| {
                h.leaf("caption", &[], caption);
                h.tag("thead", &[], |h| {
                    h.tag("tr", &[], |h| {
                        for head in heads {
                            match head.strip_prefix('#') {
                                Some(number) => h.leaf("th", &[("scope", "col"), ("class", "n")], number),
                                None => h.leaf("th", &[("scope", "col")], head),
                            }
                        }
                    });
                });
                h.tag("tbody", &[], |h| {
                    for one in rows {
                        h.tag("tr", &[], |h| row(&mut Row { html: h, is_first: true }, one));
                    }
                });
            });
        });
    }

    /// Names with values.
    pub fn facts(&mut self, facts: &[(&str, String)]) {
        self.tag("dl", &[], |h| {
            for (name, value) in facts {
                h.fact(name, value, &[]);
            }
        });
    }

    /// Names with values, of which some are long.
    pub fn details(&mut self, facts: &[(&str, String)]) {
        self.tag("dl", &[("class", "list")], |h| {
            for (name, value) in facts {
                h.fact(name, value, &[]);
            }
        });
    }

    /// Names with values that the script keeps; each has the column of the samples that it shows.
    pub fn live(&mut self, facts: &[(&str, &str, String)]) {
        self.tag("dl", &[], |h| {
            for (name, column, value) in facts {
                h.fact(name, value, &[("data-column", column)]);
            }
        });
    }

    fn fact(&mut self, name: &str, value: &str, attributes: Attributes<'_>) {
        self.tag("div", &[], |h| {
            h.leaf("dt", &[], name);
            h.leaf("dd", attributes, value);
        });
    }
}

/// A row of a table. Its first cell is its head.
pub struct Row<'a> {
    html: &'a mut Html,
    is_first: bool,
}

impl Row<'_> {
    /// A cell, with what `inside` writes in it.
    pub fn with(&mut self, inside: impl FnOnce(&mut Html)) -> &mut Self {
        match std::mem::replace(&mut self.is_first, false) {
            true => self.html.tag("th", &[("scope", "row")], inside),
            false => self.html.tag("td", &[], inside),
        }
        self
    }

    /// A cell with text.
    pub fn cell(&mut self, text: &str) -> &mut Self {
        self.with(|h| h.text(text))
    }

    /// A cell with a number.
    pub fn number(&mut self, text: &str) -> &mut Self {
        self.html.leaf("td", &[("class", "n")], text);
        self
    }

    /// A cell with a link.
    pub fn link(&mut self, path: &str, text: &str) -> &mut Self {
        self.with(|h| h.link(path, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_name_contains_it_stays_text() {
        let bad = "</title><script>alert('1')</script>\"&\u{0}\u{7f}\n";
        let mut h = Html::default();
        h.text(bad);
        h.tag("a", &[("href", bad)], |h| h.leaf("b", &[("title", bad)], bad));
        h.table(bad, &["a", "#b"], "", &[bad], |row, bad| {
            row.cell(bad).number(bad).link(bad, bad);
        });
        h.facts(&[(bad, bad.to_owned())]);
        let text = h.finish();
        let escaped =
            "&lt;/title&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;\u{fffd}\u{fffd}\n";
        assert!(text.starts_with(escaped), "{text}");
        assert!(!text.contains("<script") && !text.contains('\'') && !text.contains('\u{0}'), "{text}");
        assert!(text.contains(&format!("<a href=\"{escaped}\"><b title=\"{escaped}\">{escaped}</b></a>")));
        assert!(text.contains("<th scope=\"col\" class=\"n\">b</th>"), "{text}");
        assert!(text.contains(&format!("<th scope=\"row\">{escaped}</th><td class=\"n\">")), "{text}");
    }

    #[test]
    fn a_table_without_rows_is_a_sentence() {
        let mut h = Html::default();
        h.table("Sessions", &["a"], "Nobody is logged in.", &[] as &[u8], |_, _| ());
        assert_eq!(h.finish(), "<p>Nobody is logged in.</p>");
    }
}
