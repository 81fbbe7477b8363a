//! The description of all routes, as OpenAPI.

use crate::params::Params;
use crate::reply::{Answer, Failure};
use crate::route::Route;
use crate::state::Shared;
use crate::table::routes;
use prof_analyze::query::FIELDS;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Returns the document.
pub(crate) fn document(_: &Arc<Shared>, _: &mut Params) -> Result<Answer, Failure> {
    let mut paths = Map::new();
    for route in routes() {
        let method = if route.is_post() { "post" } else { "get" };
        paths.insert(route.path.to_owned(), json!({ method: operation(route) }));
    }
    let filters: Map<String, Value> =
        FIELDS.iter().map(|f| (f.name.to_owned(), query(f.name, f.help))).collect();
    Answer::json(&json!({
        "openapi": "3.1.0",
        "info": {
            "title": "prof serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Reads recordings of memory. A request needs the token: as a cookie, as \
                            `Authorization: Bearer`, or as the parameter `token`.",
        },
        "paths": paths,
        "components": {
            "parameters": filters,
            "schemas": { "Error": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": { "type": "string", "description": "what is wrong, in one line" },
                    "field": { "type": ["string", "null"], "description": "the parameter that is wrong" },
                },
            } },
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "token": { "type": "apiKey", "in": "query", "name": "token" },
            },
        },
        "security": [{ "bearer": [] }, { "token": [] }],
    }))
}

fn query(name: &str, about: &str) -> Value {
    json!({ "name": name, "in": "query", "description": about, "schema": { "type": "string" } })
}

fn operation(route: &Route) -> Value {
    let variables = route.path.split('/').filter_map(|p| p.strip_prefix('{')?.strip_suffix('}'));
    let mut params: Vec<Value> = variables
        .map(|name| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        })
        .collect();
    params.extend(route.params.iter().map(|(name, about)| query(name, about)));
    if route.filter {
        let of = |f: &prof_analyze::query::Field| json!({ "$ref": format!("#/components/parameters/{}", f.name) });
        params.extend(FIELDS.iter().map(of));
    }
    let kind = route.kind.split(';').next().unwrap_or_default();
    let error = json!({
        "description": "why there is no answer",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    json!({
        "summary": route.about,
        "parameters": params,
        "responses": {
            "200": { "description": route.about, "content": { kind: {} } },
            "4XX": error,
        },
    })
}
