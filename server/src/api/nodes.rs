//! Nodes: list, read, steer, and let new ones join.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::asked::Asked;
use super::extract::{
    ApiJson, ApiPath, ApiQuery, IfMatch, NoQuery, PageQuery, RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::idempotency::Answer;
use crate::app::nodes::{
    self, Clear, Drain, JoinToken, NewJoinToken, Node, NodeEvent, NodeFilter, NodePatch, NodeWish,
    Reason,
};
use crate::app::page::{Page, PageAsk};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_nodes))
        .routes(routes!(create_join_token))
        .routes(routes!(get_node, update_node))
        .routes(routes!(list_node_events))
        .routes(routes!(cordon_node))
        .routes(routes!(uncordon_node))
        .routes(routes!(drain_node))
        .routes(routes!(retire_node))
        .routes(routes!(declare_node_lost))
        .routes(routes!(clear_device))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct NodePath {
    /// The node's name.
    node: Name,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct DevicePath {
    /// The node's name.
    node: Name,
    /// The device: its index on the node, or its UUID.
    device: String,
}

/// What a list of nodes is cut to.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct NodesQuery {
    /// Of this pool only.
    pool: Option<Name>,
    /// Also nodes that are gone for good; false unless given.
    retired: Option<bool>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List the nodes with their devices, by name. Who holds what is told as far as the asker may know.
#[utoipa::path(
    get, path = "/nodes", tag = "fleet", params(NodesQuery),
    responses((status = 200, description = "A page of nodes.", body = Page<Node>), Refusals)
)]
async fn list_nodes(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(query): ApiQuery<NodesQuery>,
) -> Result<Json<Page<Node>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    let filter = NodeFilter {
        pool: query.pool,
        retired: query.retired.unwrap_or(false),
    };
    nodes::list(&app, &asker, &filter, &ask).await.map(Json)
}

/// Read a node with its devices.
#[utoipa::path(
    get, path = "/nodes/{node}", tag = "fleet", params(NodePath),
    responses((status = 200, description = "The node.", body = Node), Refusals)
)]
async fn get_node(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<NodePath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Versioned<Node>, AppError> {
    let node = nodes::get(&app, &asker, &path.node).await?;
    let version = node.version;
    Ok(Versioned(node, version))
}

/// Change a node's labels.
#[utoipa::path(
    patch, path = "/nodes/{node}", tag = "fleet",
    params(NodePath, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = NodePatch,
    responses((status = 200, description = "The node.", body = Node), UpdateRefusals)
)]
async fn update_node(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<NodePath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<NodePatch>,
) -> Result<Versioned<Node>, AppError> {
    let node = nodes::update(&app, &asker, &path.node, version, patch).await?;
    let version = node.version;
    Ok(Versioned(node, version))
}

/// List what happened to a node and its devices, the newest first.
#[utoipa::path(
    get, path = "/nodes/{node}/events", tag = "fleet", params(NodePath, PageQuery),
    responses((status = 200, description = "A page of events.", body = Page<NodeEvent>), Refusals)
)]
async fn list_node_events(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<NodePath>,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<NodeEvent>>, AppError> {
    nodes::events(&app, &asker, &path.node, &page.ask()?)
        .await
        .map(Json)
}

/// Keep new work away from a node; what runs stays.
#[utoipa::path(
    post, path = "/nodes/{node}/cordon", tag = "fleet",
    params(NodePath, RepeatKey),
    request_body = Option<Reason>,
    responses((status = 200, description = "The node.", body = Node), Refusals)
)]
async fn cordon_node(asked: Asked<NodePath, Reason>) -> Result<Answer<Node>, AppError> {
    set_intent(asked, NodeWish::Cordon).await
}

/// Let new work come to a node again.
#[utoipa::path(
    post, path = "/nodes/{node}/uncordon", tag = "fleet",
    params(NodePath, RepeatKey),
    request_body = Option<Reason>,
    responses((status = 200, description = "The node.", body = Node), Refusals)
)]
async fn uncordon_node(asked: Asked<NodePath, Reason>) -> Result<Answer<Node>, AppError> {
    set_intent(asked, NodeWish::Uncordon).await
}

/// Empty a node: new work stays away, preemptible work is moved, other work may end. With a deadline all
/// work may stay until then, and what still runs then is preempted. Asked again, the last word holds.
#[utoipa::path(
    post, path = "/nodes/{node}/drain", tag = "fleet",
    params(NodePath, RepeatKey),
    request_body = Option<Drain>,
    responses((status = 200, description = "The node.", body = Node), Refusals)
)]
async fn drain_node(asked: Asked<NodePath, Drain>) -> Result<Answer<Node>, AppError> {
    let node = &asked.object.node;
    nodes::drain(&asked.app, &asked.asker, asked.repeat, node, asked.input).await
}

/// Take a node out for good. It must hold nothing; its name and id are not used again.
#[utoipa::path(
    post, path = "/nodes/{node}/retire", tag = "fleet",
    params(NodePath, RepeatKey),
    request_body = Option<Reason>,
    responses((status = 200, description = "The node.", body = Node), Refusals)
)]
async fn retire_node(asked: Asked<NodePath, Reason>) -> Result<Answer<Node>, AppError> {
    set_intent(asked, NodeWish::Retire).await
}

/// Declare a node dead that does not answer. Work on it is ended, also work that was to be kept:
/// whoever asks vouches that none of it runs any more.
#[utoipa::path(
    post, path = "/nodes/{node}/declare-lost", tag = "fleet", params(NodePath, RepeatKey),
    request_body = Option<Reason>,
    responses((status = 200, description = "The node.", body = Node), Refusals)
)]
async fn declare_node_lost(asked: Asked<NodePath, Reason>) -> Result<Answer<Node>, AppError> {
    let node = &asked.object.node;
    nodes::declare_lost(&asked.app, &asked.asker, asked.repeat, node, asked.input).await
}

/// Return a device to service of which something was found: whoever asks vouches that it is dealt with, up to the
/// newest finding that was seen.
/// Its node is told, and the device is healthy when the node says so; what the node still sees of it keeps it out.
#[utoipa::path(
    post, path = "/nodes/{node}/devices/{device}/clear", tag = "fleet",
    params(DevicePath, RepeatKey),
    request_body = Clear,
    responses((status = 200, description = "The node.", body = Node), Refusals)
)]
async fn clear_device(asked: Asked<DevicePath, Clear>) -> Result<Answer<Node>, AppError> {
    let DevicePath { node, device } = &asked.object;
    let device = (node, device.as_str());
    nodes::clear_device(&asked.app, &asked.asker, asked.repeat, device, asked.input).await
}

async fn set_intent(
    asked: Asked<NodePath, Reason>,
    wish: NodeWish,
) -> Result<Answer<Node>, AppError> {
    let node = &asked.object.node;
    let why = asked.input;
    nodes::set_intent(&asked.app, &asked.asker, asked.repeat, node, wish, why).await
}

/// Make a one-time token with which a machine joins a pool. It is shown once.
#[utoipa::path(
    post, path = "/nodes/join-tokens", tag = "fleet", request_body = NewJoinToken,
    responses((status = 201, description = "The token, and the command that enrols a machine.", body = JoinToken), Refusals)
)]
async fn create_join_token(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    ApiJson(new): ApiJson<NewJoinToken>,
) -> Result<impl IntoResponse, AppError> {
    let token = nodes::create_join_token(&app, &asker, new).await?;
    Ok((StatusCode::CREATED, Json(token)))
}
