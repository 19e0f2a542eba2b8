//! The Tenants, counted.

use capt_api::Tenant;
use capt_api::conditions::tenant::{Deleting, Ready};
use capt_api::conditions::{self, Reason};
use capt_runtime::census::{Census, PENDING};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub(crate) fn census() -> Census<Tenant> {
    Census::new("Tenant", told)
        .troubles_of::<Ready>()
        .troubles_of::<Deleting>()
        .phases(&["Ready", "Deleting", PENDING], phase)
}

fn told(tenant: &Tenant) -> &[Condition] {
    tenant.status.as_ref().map_or(&[], |status| &status.conditions)
}

fn phase(tenant: &Tenant) -> &'static str {
    match tenant.metadata.deletion_timestamp {
        Some(_) => "Deleting",
        None if conditions::is_true(told(tenant), Ready::TYPE) => "Ready",
        None => PENDING,
    }
}
