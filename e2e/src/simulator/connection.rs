//! The connection secret: every output, published before the first apply (empty), after each apply and on each poll.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::TypeMeta;
use kube::{Api, Client};
use serde_json::Value;

use super::state::State;
use super::workspace::SecretRef;

const SECRET_TYPE: &str = "connection.crossplane.io/v1alpha1";

/// Output name to value: a string as it is, anything else as JSON.
pub(super) type Details = BTreeMap<String, ByteString>;

pub(super) fn details(state: &State) -> Details {
    let bytes = |value: &Value| match value {
        Value::String(text) => text.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    };
    state
        .outputs
        .iter()
        .map(|(name, output)| (name.clone(), ByteString(bytes(&output.value))))
        .collect()
}

/// Creates the secret, or merges the details into it: keys of outputs that are gone stay.
pub(super) async fn publish(
    client: &Client,
    owner: &DynamicObject,
    wanted: Option<&SecretRef>,
    details: Details,
) -> Result<(), String> {
    let Some(reference) = wanted else {
        return Ok(());
    };
    let namespace = owner.metadata.namespace.as_ref().or(reference.namespace.as_ref());
    let api = Api::<Secret>::namespaced(client.clone(), namespace.map(String::as_str).unwrap_or_default());
    apply(&api, secret_for(owner, reference, details))
        .await
        .map_err(|reason| format!("cannot create or update connection secret: {reason}"))
}

async fn apply(api: &Api<Secret>, desired: Secret) -> Result<(), String> {
    let name = desired.metadata.name.clone().unwrap_or_default();
    let Some(current) = api
        .get_opt(&name)
        .await
        .map_err(|error| said("cannot get object", error))?
    else {
        return match api.create(&PostParams::default(), &desired).await {
            Ok(_) => Ok(()),
            Err(error) => Err(said("cannot create object", error)),
        };
    };
    refuse_foreign(&current, &desired)?;
    if current.data.as_ref().unwrap_or(&Details::new()) == desired.data.as_ref().unwrap_or(&Details::new()) {
        return Ok(());
    }
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(&desired)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(said("cannot patch object", error)),
    }
}

fn refuse_foreign(current: &Secret, desired: &Secret) -> Result<(), String> {
    let controller = |secret: &Secret| {
        let owners = secret.metadata.owner_references.iter().flatten();
        owners
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone())
            .next()
    };
    let ours = controller(desired).unwrap_or_default();
    match controller(current) {
        None if current.type_.as_deref() != Some(SECRET_TYPE) => Err(format!(
            "refusing to modify uncontrolled secret of type {:?}",
            current.type_.as_deref().unwrap_or_default()
        )),
        Some(theirs) if theirs != ours => Err(format!("existing secret is not controlled by UID {ours:?}")),
        _ => Ok(()),
    }
}

fn secret_for(owner: &DynamicObject, reference: &SecretRef, details: Details) -> Secret {
    let TypeMeta { api_version, kind } = owner.types.clone().unwrap_or_default();
    Secret {
        metadata: ObjectMeta {
            name: Some(reference.name.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version,
                kind,
                name: owner.metadata.name.clone().unwrap_or_default(),
                uid: owner.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: (!details.is_empty()).then_some(details),
        ..Secret::default()
    }
}

fn said(what: &str, error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{what}: {}", status.message),
        other => format!("{what}: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(kind: &str, controller: Option<&str>) -> Secret {
        Secret {
            metadata: ObjectMeta {
                owner_references: controller.map(|uid| {
                    vec![OwnerReference {
                        uid: uid.into(),
                        controller: Some(true),
                        ..OwnerReference::default()
                    }]
                }),
                ..ObjectMeta::default()
            },
            type_: Some(kind.into()),
            ..Secret::default()
        }
    }

    #[test]
    fn only_our_own_or_an_orphaned_connection_secret_is_touched() {
        let ours = secret(SECRET_TYPE, Some("us"));
        let rows = [
            (secret(SECRET_TYPE, Some("us")), true),
            (secret(SECRET_TYPE, None), true),
            (secret("Opaque", Some("us")), true),
            (secret("Opaque", None), false),
            (secret(SECRET_TYPE, Some("them")), false),
        ];
        for (current, allowed) in rows {
            assert_eq!(refuse_foreign(&current, &ours).is_ok(), allowed);
        }
    }
}
