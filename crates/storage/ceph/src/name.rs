//! The name of an image: `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rados::{Login, Source};

/// Names an image, or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageName {
    pub pool: String,
    pub namespace: Option<String>,
    pub image: String,
    pub snapshot: Option<String>,
}

/// The text names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of an RBD image")]
pub struct NameError(String);

impl NameError {
    /// What to write instead.
    pub const INSTEAD: &str = "write rbd:POOL/IMAGE, rbd:POOL/NAMESPACE/IMAGE, or one of them and @SNAPSHOT";
}

impl FromStr for ImageName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError(text.to_owned());
        let (path, snapshot) = match text.split_once('@') {
            Some((path, snapshot)) => (path, Some(snapshot.to_owned())),
            None => (text, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace.to_owned()), image),
            _ => return Err(wrong()),
        };
        let named = parts.iter().copied().chain(snapshot.as_deref());
        let is_name = |part: &str| !part.is_empty() && !part.contains(['@', '/', '\0']);
        if !named.into_iter().all(is_name) {
            return Err(wrong());
        }
        Ok(Self { pool: pool.to_owned(), namespace, image: image.to_owned(), snapshot })
    }
}

impl ImageName {
    /// What is opened, to be written unless it is a snapshot.
    pub(crate) fn source(&self, login: Login, op_timeout: Duration) -> Source {
        Source {
            login,
            pool: self.pool.clone(),
            namespace: self.namespace.clone(),
            image: self.image.clone(),
            snapshot: self.snapshot.clone(),
            read_only: false,
            key_file: None,
            op_timeout,
            known: None,
        }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_shown() {
        for text in ["rbd/disk", "rbd/ns/disk", "rbd/disk@noon", "rbd/ns/disk@noon"] {
            assert_eq!(text.parse::<ImageName>().unwrap().to_string(), text);
        }
        let name: ImageName = "pool/ns/disk@snap".parse().unwrap();
        assert_eq!((name.pool.as_str(), name.namespace.as_deref()), ("pool", Some("ns")));
        assert_eq!((name.image.as_str(), name.snapshot.as_deref()), ("disk", Some("snap")));
    }

    #[test]
    fn what_names_no_image_is_refused() {
        for text in
            ["", "disk", "/disk", "rbd/", "rbd//disk", "a/b/c/d", "rbd/disk@", "rbd/disk@a/b", "rbd/d@a@b"]
        {
            assert_eq!(text.parse::<ImageName>(), Err(NameError(text.into())), "{text}");
        }
    }
}
