//! Whether a live object already is what was rendered, although the server may have added to it.

use serde_json::{Number, Value};

/// Whether everything in `rendered` stands in `live`.
///
/// The API server fills in defaults, so a live spec has more members than the rendered one; comparing for equality would
/// write on every pass, for ever. Lists must have the same length, entry by entry: a shorter rendered list means that an
/// entry was dropped. `null` is an absent member.
///
/// A member that was rendered before and is not any more is *not* seen here: the recorded revision tells that.
pub fn contains(live: &Value, rendered: &Value) -> bool {
    match (live, rendered) {
        (_, Value::Null) => live.is_null(),
        (Value::Object(live), Value::Object(rendered)) => rendered
            .iter()
            .all(|(key, wished)| contains(live.get(key).unwrap_or(&Value::Null), wished)),
        (Value::Array(live), Value::Array(rendered)) => {
            live.len() == rendered.len() && live.iter().zip(rendered).all(|(live, wished)| contains(live, wished))
        }
        (Value::Number(live), Value::Number(rendered)) => same_number(live, rendered),
        _ => live == rendered,
    }
}

/// The server writes 1.0 as 1.
fn same_number(a: &Number, b: &Number) -> bool {
    a == b || ((a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn defaults_may_be_added_but_nothing_rendered_may_be_missing() {
        for (live, rendered, expected) in [
            (json!({"a": 1, "default": true}), json!({"a": 1}), true),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), false),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1}}), true),
            (json!({"a": {"b": 2}}), json!({"a": {"b": 1}}), false),
            (json!({"a": [1, 2]}), json!({"a": [1]}), false),
            (json!({"a": [1]}), json!({"a": [1, 2]}), false),
            (json!({"a": [2, 1]}), json!({"a": [1, 2]}), false),
            (json!({"a": [{"k": 1, "default": 0}]}), json!({"a": [{"k": 1}]}), true),
            (json!({}), json!({"a": null}), true),
            (json!({"a": 1}), json!({"a": null}), false),
            (json!({}), json!({"a": {}}), false),
            (json!({"a": "1"}), json!({"a": 1}), false),
            (json!({"a": 1}), json!({"a": 1.0}), true),
            (
                json!({"a": 9_007_199_254_740_993_u64}),
                json!({"a": 9_007_199_254_740_992_u64}),
                false,
            ),
        ] {
            assert_eq!(contains(&live, &rendered), expected, "{live} contains {rendered}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// What an API server with defaults does: new members, anywhere.
    fn with_defaults(value: &Value) -> Value {
        match value {
            Value::Object(members) => {
                let mut members: serde_json::Map<_, _> = members
                    .iter()
                    .map(|(key, value)| (key.clone(), with_defaults(value)))
                    .collect();
                members.insert("added by the server".into(), json!("default"));
                Value::Object(members)
            }
            Value::Array(entries) => entries.iter().map(with_defaults).collect(),
            scalar => scalar.clone(),
        }
    }

    /// Every value that is `value` with one scalar changed.
    fn with_one_change(value: &Value) -> Vec<Value> {
        match value {
            Value::Object(members) => members
                .iter()
                .flat_map(|(key, inner)| {
                    with_one_change(inner).into_iter().map(move |changed| {
                        let mut members = members.clone();
                        members.insert(key.clone(), changed);
                        Value::Object(members)
                    })
                })
                .collect(),
            Value::Array(entries) => entries
                .iter()
                .enumerate()
                .flat_map(|(index, inner)| {
                    with_one_change(inner).into_iter().map(move |changed| {
                        let mut entries = entries.clone();
                        entries[index] = changed;
                        Value::Array(entries)
                    })
                })
                .collect(),
            _ => vec![json!("changed by somebody")],
        }
    }

    proptest! {
        #[test]
        fn a_value_contains_itself(value in values()) {
            prop_assert!(contains(&value, &value));
        }

        #[test]
        fn defaults_never_cause_a_write(value in values()) {
            prop_assert!(contains(&with_defaults(&value), &value));
        }

        #[test]
        fn a_rendered_member_that_is_missing_is_seen(value in values()) {
            prop_assume!(value.is_object());
            prop_assert!(!contains(&value, &with_defaults(&value)));
        }

        #[test]
        fn any_changed_scalar_is_seen(value in values()) {
            for changed in with_one_change(&value) {
                prop_assert!(!contains(&with_defaults(&changed), &value), "{changed} contains {value}");
            }
        }

        #[test]
        fn containing_is_transitive(value in values()) {
            let more = with_defaults(&value);
            let most = with_defaults(&json!({"inner": more}));
            prop_assert!(contains(&most["inner"], &value));
        }
    }
}
