//! Forms as browsers send them (application/x-www-form-urlencoded), and queries, which have the
//! same form. Values are zeroed when they are dropped: one may be a token.

use zeroize::Zeroize;

use crate::api::percent;

/// Fields of a form at most.
const FIELDS: usize = 64;

/// Names and values, in their order.
#[derive(Default)]
pub struct Form {
    fields: Vec<(String, String)>,
}

impl Form {
    /// Reads a body or a query.
    ///
    /// # Errors
    /// It is no form, or has more than 64 fields.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut form = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if form.fields.len() >= FIELDS {
                return Err("the form has too many fields".to_owned());
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| percent::decoded(&text.replace('+', " "));
            match (plain(name), plain(value)) {
                // Browsers end lines by CR LF.
                (Some(name), Some(value)) => form.fields.push((name, value.replace("\r\n", "\n"))),
                _ => return Err("this is no form".to_owned()),
            }
        }
        Ok(form)
    }

    /// A field's value without spaces around it; empty if it is missing. Of several, the first.
    pub fn get(&self, name: &str) -> &str {
        self.fields.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value.trim())
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// It is missing; `what` names it.
    pub fn needed(&self, name: &str, what: &str) -> Result<&str, String> {
        match self.get(name) {
            "" => Err(format!("{what} is missing")),
            value => Ok(value),
        }
    }

    /// Whether a box is ticked.
    pub fn ticked(&self, name: &str) -> bool {
        !self.get(name).is_empty()
    }
}

impl Drop for Form {
    fn drop(&mut self) {
        self.fields.iter_mut().for_each(|(_, value)| value.zeroize());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_and_nonsense_is_refused() {
        let form =
            Form::read("name=a+b%2B%26&path=%2Fsrv%2Fx&empty=&name=later&box=on&text=a%0D%0Ab").unwrap();
        assert_eq!((form.get("name"), form.get("path"), form.get("none")), ("a b+&", "/srv/x", ""));
        assert_eq!(form.get("text"), "a\nb");
        assert!(form.ticked("box") && !form.ticked("empty"));
        assert_eq!(form.needed("empty", "the name").unwrap_err(), "the name is missing");
        for wrong in ["a=%", "a=%zz", "%ff=1", &"a=1&".repeat(FIELDS + 1)] {
            assert!(Form::read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Form::read("").unwrap().get(""), "");
    }
}
