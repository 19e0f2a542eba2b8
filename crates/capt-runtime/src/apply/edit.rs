//! JSON patches of the form "if these still hold, do these".
//!
//! Every JSON patch that CAPT sends is made here. A `test` makes the API server itself decide whether the object is still
//! the one that was planned from, in the same transaction as the change.

use std::collections::BTreeMap;
use std::fmt;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation};
use serde_json::Value;

/// Conditions and changes for one object.
///
/// The object's UID is always tested. An edit without a condition of its own is bound to the resourceVersion that was
/// planned from; one with conditions is bound to those values instead, so that unrelated writers do not disturb it.
/// Paths are the names from the root down: `&["spec", "controlPlaneEndpoint"]`.
#[derive(Clone, Default)]
pub struct Edit {
    tests: Vec<PatchOperation>,
    changes: Vec<PatchOperation>,
    at_version: bool,
}

impl Edit {
    pub fn new() -> Self {
        Self::default()
    }

    /// Only if the value here is still this one; `None`: only if there is none. (The object above it must exist.)
    #[must_use]
    pub fn only_if(mut self, path: &[&str], value: Option<Value>) -> Self {
        self.tests.push(test(path, value.unwrap_or(Value::Null)));
        self
    }

    /// Makes this the value here, in place of any other. The object above it must exist.
    #[must_use]
    pub fn set(mut self, path: &[&str], value: Value) -> Self {
        self.changes.push(add(path, value));
        self
    }

    /// Takes the value here away; it must exist.
    #[must_use]
    pub fn remove(mut self, path: &[&str]) -> Self {
        self.changes.push(remove(path));
        self
    }

    /// Makes these the entries of the map at `path` (labels, annotations), each guarded by what it was; `None` takes an
    /// entry away. Entries that are already so are left out. `current` is the whole map as it was read.
    #[must_use]
    pub fn entries(
        mut self,
        path: &[&str],
        current: Option<&BTreeMap<String, String>>,
        wished: &BTreeMap<String, Option<String>>,
    ) -> Self {
        let differing: Vec<_> = wished
            .iter()
            .filter(|(key, value)| current.and_then(|map| map.get(*key)) != value.as_ref())
            .collect();
        let Some(current) = current.filter(|map| !map.is_empty()) else {
            // The map itself is absent on the server, and nothing can be added to it before it exists.
            let map: serde_json::Map<String, Value> = differing
                .into_iter()
                .filter_map(|(key, value)| Some((key.clone(), Value::String(value.clone()?))))
                .collect();
            if map.is_empty() {
                return self;
            }
            return self.only_if(path, None).set(path, Value::Object(map));
        };
        for (key, value) in differing {
            let mut path = path.to_vec();
            path.push(key);
            self = self.only_if(&path, current.get(key).cloned().map(Value::String));
            self = match value {
                Some(value) => self.set(&path, Value::String(value.clone())),
                None => self.remove(&path),
            };
        }
        self
    }

    /// Also bound to the resourceVersion, for a change that was planned from the whole object.
    #[must_use]
    pub fn at_version(mut self) -> Self {
        self.at_version = true;
        self
    }

    /// Whether it changes nothing, whatever it tests.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The patch for an object with this identity. Tests come first: a change must not satisfy or break a later test.
    pub(super) fn into_patch(self, uid: &str, resource_version: &str) -> Patch {
        let mut operations = vec![test(&["metadata", "uid"], Value::from(uid))];
        if self.at_version || self.tests.is_empty() {
            operations.push(test(&["metadata", "resourceVersion"], Value::from(resource_version)));
        }
        operations.extend(self.tests);
        operations.extend(self.changes);
        Patch(operations)
    }
}

impl From<Vec<PatchOperation>> for Edit {
    fn from(changes: Vec<PatchOperation>) -> Self {
        Self {
            changes,
            ..Self::default()
        }
    }
}

/// Paths only: the values may be those of a Secret.
impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = |operations: &[PatchOperation]| -> Vec<String> {
            operations
                .iter()
                .map(|operation| operation.path().to_string())
                .collect()
        };
        f.debug_struct("Edit")
            .field("tests", &paths(&self.tests))
            .field("changes", &paths(&self.changes))
            .finish()
    }
}

/// Escapes what JSON pointers treat specially; a label key has a slash in it.
fn pointer(tokens: &[impl AsRef<str>]) -> PointerBuf {
    PointerBuf::from_tokens(tokens.iter().map(AsRef::as_ref))
}

fn test(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation {
        path: pointer(path),
        value,
    })
}

/// On a member of an object, JSON patch's `add` also replaces; `replace` would fail on an absent one.
fn add(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation {
        path: pointer(path),
        value,
    })
}

/// On an entry of a list, `add` would insert.
pub(super) fn replace(path: &[String], value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation {
        path: pointer(path),
        value,
    })
}

pub(super) fn remove<T: AsRef<str>>(path: impl AsRef<[T]>) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation {
        path: pointer(path.as_ref()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sent(edit: Edit) -> Value {
        serde_json::to_value(edit.into_patch("u", "7")).expect("serialises")
    }

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn without_conditions_the_version_is_the_condition() {
        assert_eq!(
            sent(Edit::new().set(&["spec"], json!({"a": 1}))),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "add", "path": "/spec", "value": {"a": 1}},
            ])
        );
    }

    #[test]
    fn conditions_take_the_place_of_the_version_and_come_first() {
        let edit = Edit::new()
            .set(&["spec", "a"], json!(2))
            .only_if(&["spec", "a"], None)
            .remove(&["spec", "b"])
            .only_if(&["spec", "b"], Some(json!(1)));
        assert_eq!(
            sent(edit),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/spec/a", "value": null},
                {"op": "test", "path": "/spec/b", "value": 1},
                {"op": "add", "path": "/spec/a", "value": 2},
                {"op": "remove", "path": "/spec/b"},
            ])
        );
    }

    #[test]
    fn an_edit_can_be_bound_to_both() {
        let edit = Edit::new().only_if(&["a"], None).set(&["a"], json!(1)).at_version();
        let paths: Vec<Value> = sent(edit)
            .as_array()
            .expect("a list")
            .iter()
            .map(|op| op["path"].clone())
            .collect();
        assert_eq!(paths, ["/metadata/uid", "/metadata/resourceVersion", "/a", "/a"]);
    }

    #[test]
    fn entries_of_a_map_that_does_not_exist_yet() {
        let wished = BTreeMap::from([("a/b".to_owned(), Some("1".to_owned())), ("c".to_owned(), None)]);
        let expected = json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": "/metadata/labels", "value": null},
            {"op": "add", "path": "/metadata/labels", "value": {"a/b": "1"}},
        ]);
        assert_eq!(
            sent(Edit::new().entries(&["metadata", "labels"], None, &wished)),
            expected
        );
        assert_eq!(
            sent(Edit::new().entries(&["metadata", "labels"], Some(&map(&[])), &wished)),
            expected
        );
        let nothing = BTreeMap::from([("c".to_owned(), None)]);
        assert!(Edit::new().entries(&["metadata", "labels"], None, &nothing).is_empty());
    }

    #[test]
    fn entries_are_guarded_one_by_one_and_equal_ones_left_out() {
        let current = map(&[("same", "1"), ("x/changes", "old"), ("goes", "1"), ("foreign", "1")]);
        let wished = BTreeMap::from([
            ("same".to_owned(), Some("1".to_owned())),
            ("x/changes".to_owned(), Some("new".to_owned())),
            ("goes".to_owned(), None),
            ("comes".to_owned(), Some("1".to_owned())),
            ("never~was".to_owned(), None),
        ]);
        assert_eq!(
            sent(Edit::new().entries(&["metadata", "annotations"], Some(&current), &wished)),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/annotations/comes", "value": null},
                {"op": "test", "path": "/metadata/annotations/goes", "value": "1"},
                {"op": "test", "path": "/metadata/annotations/x~1changes", "value": "old"},
                {"op": "add", "path": "/metadata/annotations/comes", "value": "1"},
                {"op": "remove", "path": "/metadata/annotations/goes"},
                {"op": "add", "path": "/metadata/annotations/x~1changes", "value": "new"},
            ])
        );
    }

    #[test]
    fn debug_shows_no_value() {
        let edit = Edit::new()
            .only_if(&["data"], Some(json!("old")))
            .set(&["data"], json!({"value": "hunter2"}));
        let shown = format!("{edit:?}");
        assert!(
            shown.contains("/data") && !shown.contains("hunter2") && !shown.contains("old"),
            "{shown}"
        );
    }
}
