//! The frame of the OpenAPI document; the operations and schemas come from the handlers.

use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::problem::Problem;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Allotment",
        description = "Teams share a fleet of GPUs: submit work, see why it waits, and what it costs. \
                       Updates take If-Match with the version that was read; every POST takes an \
                       Idempotency-Key; lists are paged by cursor; errors are problem+json.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "/api/v1")),
    components(schemas(Problem)),
    modifiers(&Bearer),
    security(("bearer" = [])),
    tags(
        (name = "people", description = "Log-in, users, teams and members."),
        (name = "policy", description = "Pools, classes, quotas and prices."),
        (name = "fleet", description = "Nodes and the machines that join."),
        (name = "work", description = "Jobs: submit, follow, explain."),
        (name = "money", description = "Usage, cost and budgets."),
        (name = "notices", description = "What is told to whom: subscriptions, webhooks, deliveries, schedules."),
    )
)]
struct Base;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme(
            "bearer",
            SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
        );
    }
}

/// The document without operations.
pub fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}
