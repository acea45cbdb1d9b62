"""
The schemas of the charts' values: what is written here, and the services' settings as they are.

``python -m tools.chart_files`` writes them; the tests of the charts fail when they are stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.chart_settings import MANAGED, SETTINGS

Schema = dict[str, Any]

BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS: Schema = {"type": "array", "items": TEXT}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
QUANTITY: Schema = {"type": ["string", "number"]}
QUANTITIES: Schema = {"type": "object", "additionalProperties": QUANTITY}
POOL_NAME = "^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$"
SECRET: Schema = {"name": TEXT, "key": TEXT}
FOREIGN = "an object of Kubernetes, which checks it"


def count(minimum: int = 0) -> Schema:
    """Return the schema of a whole number."""
    return {"type": "integer", "minimum": minimum}


def choice(*values: str) -> Schema:
    """Return the schema of one of some texts."""
    return {"type": "string", "enum": list(values)}


def closed(properties: Mapping[str, Schema], **rest: object) -> Schema:
    """Return the schema of an object with no other keys."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(properties),
        **rest,
    }


def foreign() -> Schema:
    """Return the schema of an object that is Kubernetes' own."""
    return {"type": "object", "additionalProperties": True, "$comment": FOREIGN}


def foreign_list() -> Schema:
    """Return the schema of a list of Kubernetes' own objects."""
    return {"type": "array", "items": foreign()}


def both_on(first: str, second: str) -> Schema:
    """Return a rule that refuses two objects which are both enabled."""
    enabled = {"properties": {"enabled": {"const": True}}, "required": ["enabled"]}
    return {"not": {"properties": {first: enabled, second: enabled}, "required": [first, second]}}


def settings_schema(component: str) -> Schema:
    """Return the schema of the settings that users give by their own names."""
    properties = SETTINGS[component].model_json_schema()["properties"]
    return closed(
        {
            name: {key: value for key, value in field.items() if key not in {"title", "default"}}
            for name, field in properties.items()
            if name not in MANAGED[component]
        }
    )


def image() -> Schema:
    """Return the schema of an image."""
    return closed(
        {
            "repository": TEXT,
            "tag": {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"},
            "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
            "pullPolicy": choice("Always", "IfNotPresent", "Never"),
        }
    )


def hub() -> Schema:
    """Return the schema of a model on a hub."""
    return closed(
        {
            "repository": TEXT,
            "revision": TEXT,
            "endpoint": TEXT,
            "tokenSecret": closed(SECRET),
        }
    )


def model(*sources: str, hub_extra: Mapping[str, Schema] | None = None, **extra: Schema) -> Schema:
    """Return the schema of where a model comes from, with what each source needs."""
    of_hub = hub()
    of_hub["properties"] |= hub_extra or {}
    filled = {"type": "string", "minLength": 1}
    needs: dict[str, Schema] = {
        "image": {"properties": {"path": {"type": "string", "pattern": "^/"}}},
        "claim": {"properties": {"claimName": filled}},
    }
    properties = {"source": choice(*sources), "path": TEXT, "claimName": TEXT, "hub": of_hub}
    return closed(
        {**properties, **extra},
        allOf=[
            {
                "if": {"properties": {"source": {"const": name}}, "required": ["source"]},
                "then": rule,
            }
            for name, rule in needs.items()
        ],
    )


def cache(*types: str, **extra: Schema) -> Schema:
    """Return the schema of a cache volume."""
    properties = {"type": choice(*types), "size": QUANTITY, "claimName": TEXT, "hostPath": TEXT}
    return closed({**properties, **extra})


def strategy() -> Schema:
    """Return the schema of a rollout, which refuses one that could never proceed."""
    amount = {"type": ["integer", "string"], "pattern": "^([0-9]+%)?$", "minimum": 0}
    none = {"enum": [0, "0%"]}
    return closed(
        {
            "type": choice("", "RollingUpdate", "Recreate"),
            "maxSurge": amount,
            "maxUnavailable": amount,
        },
        **{
            "not": {
                "properties": {"maxSurge": none, "maxUnavailable": none},
                "required": ["maxSurge", "maxUnavailable"],
            }
        },
    )


def scaling() -> dict[str, Schema]:
    """Return the schemas of the two scalers."""
    limits = {"enabled": BOOLEAN, "minReplicas": count(1), "maxReplicas": count(1)}
    percent = {"type": "integer", "minimum": 1, "maximum": 100}
    return {
        "autoscaling": closed(
            {
                **limits,
                "targetCPUUtilizationPercentage": percent,
                "metrics": foreign_list(),
                "behavior": foreign(),
            }
        ),
        "keda": closed(
            {**limits, "serverAddress": TEXT, "threshold": TEXT, "triggers": foreign_list()}
        ),
    }


def workload(component: str, **extra: Schema) -> Schema:
    """Return the schema of what all three services can be told."""
    amount = {"type": ["integer", "string"], "pattern": "^[0-9]+%$", "minimum": 0}
    return closed(
        {
            "replicas": count(),
            "image": image(),
            "settings": settings_schema(component),
            "resources": closed({"requests": QUANTITIES, "limits": QUANTITIES}),
            "startup": closed({"timeoutSeconds": count(5)}),
            "pdb": closed({"enabled": BOOLEAN, "maxUnavailable": amount}),
            **scaling(),
            "strategy": strategy(),
            "tls": closed({"existingSecret": TEXT, "clientCASecret": TEXT}),
            "readOnlyRootFilesystem": BOOLEAN,
            "extraArgs": TEXTS,
            **{
                name: foreign_list()
                for name in ("extraEnv", "extraEnvFrom", "extraVolumes", "extraVolumeMounts")
            },
            "podAnnotations": LABELS,
            "podLabels": LABELS,
            "nodeSelector": LABELS,
            "tolerations": foreign_list(),
            "affinity": foreign(),
            "topologySpreadConstraints": foreign_list(),
            "priorityClassName": TEXT,
            "runtimeClassName": TEXT,
            **extra,
        },
        **both_on("autoscaling", "keda"),
    )


def gateway() -> Schema:
    """Return the schema of the gateway."""
    service_types = choice("ClusterIP", "NodePort", "LoadBalancer")
    return workload(
        "gateway",
        service=closed({"type": service_types, "port": PORT, "annotations": LABELS}),
        links=links(),
        auth=closed({"apiKeysSecret": closed(SECRET), "jwksSecret": closed(SECRET)}),
        grpcRoute=closed(
            {
                "enabled": BOOLEAN,
                "parentRefs": foreign_list(),
                "hostnames": TEXTS,
                "weight": count(),
                "extraBackendRefs": foreign_list(),
            }
        ),
        cache=cache("emptyDir", "existingClaim", "hostPath"),
    )


def links() -> Schema:
    """Return the schema of how other services are dialed."""
    return closed({"caSecret": TEXT, "certificateSecret": TEXT})


def gpu() -> Schema:
    """Return the schema of a pod's GPUs."""
    return closed({"count": count(), "resourceName": TEXT})


def verifier() -> Schema:
    """Return the schema of a verifier pool."""
    engines = SETTINGS["verifier"].model_json_schema()["properties"]["engine"]["enum"]
    return workload(
        "verifier",
        enabled=BOOLEAN,
        engine=choice(*engines),
        gpu=gpu(),
        port=PORT,
        shmSize=QUANTITY,
        cache=cache(
            *("emptyDir", "claim", "existingClaim", "hostPath"),
            storageClassName=TEXT,
            accessModes=TEXTS,
        ),
        links=links(),
        multinode=closed({"enabled": BOOLEAN, "size": count(2), "workerCommand": TEXTS}),
    )


def draft(**extra: Schema) -> Schema:
    """Return the schema of a draft pool."""
    return workload(
        "draft",
        engine={"type": "string", "minLength": 1},
        weight=count(),
        model=model("none", "image", "claim", "hub"),
        gpu=gpu(),
        port=PORT,
        cache=cache("emptyDir", "existingClaim", "hostPath"),
        **extra,
    )


def pools(entry: str) -> Schema:
    """Return the schema of a map of pools."""
    return closed({}, patternProperties={POOL_NAME: {"$ref": f"#/definitions/{entry}"}})


def release() -> dict[str, Schema]:
    """Return the schemas of what both charts share."""
    return {
        "nameOverride": TEXT,
        "fullnameOverride": TEXT,
        "clusterDomain": TEXT,
        "commonLabels": LABELS,
        "global": closed(
            {
                "imageRegistry": TEXT,
                "imagePullSecrets": TEXTS,
                "logLevel": choice("debug", "info", "warning", "error"),
                "logFormat": choice("json", "console"),
            }
        ),
        "serviceAccount": closed({"create": BOOLEAN, "name": TEXT, "annotations": LABELS}),
        "openshift": closed({"enabled": BOOLEAN}),
        "extraObjects": foreign_list(),
    }


def network(*peers: str) -> Schema:
    """Return the schema of who may talk to whom."""
    return closed({"enabled": BOOLEAN, **{name: foreign_list() for name in peers}})


def tracing() -> Schema:
    """Return the schema of where traces go."""
    return closed(
        {
            "otlpEndpoint": {"type": "string", "pattern": "^(https?://[^\\s/]+)?$"},
            "ratio": {"type": "number", "minimum": 0, "maximum": 1},
            "resourceAttributes": {
                "type": "object",
                "additionalProperties": {"type": "string", "pattern": "^[^,;=\\s]*$"},
            },
        }
    )


def monitors() -> dict[str, Schema]:
    """Return the schemas of how Prometheus finds pods."""
    monitor = closed({"enabled": BOOLEAN, "interval": TEXT, "labels": LABELS})
    return {"port": PORT, "serviceMonitor": monitor, "podMonitor": monitor}


def paceline_schema() -> Schema:
    """Return the schema of chart ``paceline``."""
    external = closed(
        {"address": {"type": "string", "pattern": "^[^\\s:]+:[0-9]+$"}, "weight": count()},
        required=["address"],
    )
    rule = closed({"enabled": BOOLEAN, "labels": LABELS, "runbookUrl": TEXT})
    return document(
        {
            **release(),
            "model": model(
                *("packaged", "image", "claim", "hub"),
                hub_extra={"prefetchJob": BOOLEAN},
                packaged=TEXT,
            ),
            "routing": closed(
                {
                    "default": TEXT,
                    "externalPools": closed({}, patternProperties={POOL_NAME: external}),
                }
            ),
            "gateway": gateway(),
            "verifierDefaults": {"$ref": "#/definitions/verifier"},
            "verifiers": pools("verifier"),
            "draftDefaults": {"$ref": "#/definitions/draft"},
            "drafts": pools("draft"),
            "networkPolicy": network("applications", "monitoring", "dns", "hub", "collector"),
            "tracing": tracing(),
            "monitoring": closed(
                {
                    **monitors(),
                    "prometheusRule": rule,
                    "dashboards": closed({"enabled": BOOLEAN, "labels": LABELS}),
                },
                **both_on("serviceMonitor", "podMonitor"),
            ),
            "tests": closed(
                {
                    "enabled": BOOLEAN,
                    "prompt": TEXT,
                    "maxTokens": count(1),
                    "timeoutSeconds": count(1),
                    "apiKeySecret": closed(SECRET),
                    "certificateSecret": TEXT,
                    "resources": closed({"requests": QUANTITIES, "limits": QUANTITIES}),
                }
            ),
        },
        {"verifier": verifier(), "draft": draft(enabled=BOOLEAN)},
    )


def paceline_draft_schema() -> Schema:
    """Return the schema of chart ``paceline-draft``."""
    return document(
        {
            **release(),
            "paceline": closed({"release": {"type": "string", "minLength": 1}}),
            "pool": draft(name={"type": "string", "pattern": POOL_NAME}),
            "networkPolicy": network("monitoring", "dns", "hub", "collector"),
            "tracing": tracing(),
            "monitoring": closed(monitors(), **both_on("serviceMonitor", "podMonitor")),
        },
        {},
    )


def document(properties: Mapping[str, Schema], definitions: Mapping[str, Schema]) -> Schema:
    """Return a whole schema; Helm itself adds the values of subcharts under ``global``."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **closed(properties),
        **({"definitions": dict(definitions)} if definitions else {}),
    }
