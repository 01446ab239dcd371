"""Condition types and reasons: the closed sets that dashboards, alerts and scripts may rely on."""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """The eleven conditions. All are always present, so that no script has to handle a missing one.

    Reconciling and Stalled are what kstatus (Flux, `kubectl` plugins) and Argo CD's health checks look at.
    """

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    MODEL_LOADED = "ModelLoaded"
    SCALING_ACTIVE = "ScalingActive"
    ROLLOUT_BLOCKED = "RolloutBlocked"
    MEMORY_FITS = "MemoryFits"
    ADAPTERS_READY = "AdaptersReady"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


BAD_STATUS = {
    ConditionType.READY: "False",
    ConditionType.DEGRADED: "True",
    ConditionType.SCALING_ACTIVE: "False",
    ConditionType.ROLLOUT_BLOCKED: "True",
    ConditionType.MEMORY_FITS: "False",
    ConditionType.ADAPTERS_READY: "False",
}
"""The status in which a condition reports a fault, or a wait.

The other conditions change together with one of these, or say nothing that a person waits for.
"""


class Reason(StrEnum):
    """The reason of a condition's state."""

    # Ready and Available
    SERVING = "Serving"
    ROLLING_OUT = "RollingOut"
    FEWER_REPLICAS = "FewerReplicas"
    NO_READY_REPLICA = "NoReadyReplica"
    NO_ENDPOINTS = "NoEndpoints"
    SUSPENDED = "Suspended"
    SCALED_TO_ZERO = "ScaledToZero"
    # Progressing
    DEPLOYING = "Deploying"
    DEPLOYED = "Deployed"
    PAUSED = "Paused"
    WAITING_FOR_GPU = "WaitingForGPU"
    WAITING_FOR_VOLUMES = "WaitingForVolumes"
    UNSCHEDULABLE = "Unschedulable"
    NO_SCHEDULER = "NoScheduler"
    NO_CONTROLLER = "NoController"
    NO_SANDBOX = "NoSandbox"
    SCHEDULING_GATED = "SchedulingGated"
    NODE_LOST = "NodeLost"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    # Degraded
    AS_EXPECTED = "AsExpected"
    FIELDS_NOT_YET_ACTED_ON = "FieldsNotYetActedOn"
    CONFIGURATION_ERROR = "ConfigurationError"
    MODEL_NOT_FOUND = "ModelNotFound"
    OUT_OF_MEMORY = "OutOfMemory"
    ENGINE_STALLED = "EngineStalled"
    CRASH_LOOP = "CrashLoop"
    PROBE_FAILED = "ProbeFailed"
    POD_FAILED = "PodFailed"
    PREEMPTED = "Preempted"
    EVICTED = "Evicted"
    PODS_DELETED = "PodsDeleted"
    PULL_FAILED = "PullFailed"
    VOLUME_LOST = "VolumeLost"
    RESIZE_FAILED = "ResizeFailed"
    NO_LOAD_BALANCER = "NoLoadBalancer"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason
    CONFIG_MAP_MISSING = "ConfigMapMissing"
    POLICY_DENIED = "PolicyDenied"
    APPLY_FAILED = "ApplyFailed"
    RIGHTS_MISSING = "RightsMissing"
    NAME_TAKEN = "NameTaken"
    BEING_DELETED = "BeingDeleted"
    FOREIGN_ENDPOINTS = "ForeignEndpoints"
    RELEASED_POD = "ReleasedPod"
    POD_STUCK_TERMINATING = "PodStuckTerminating"
    SECOND_BUDGET = "SecondBudget"
    FEATURE_GATE_OFF = "FeatureGateOff"
    FIELD_CONFLICT = "FieldConflict"
    INVALID = "Invalid"
    # ModelLoaded
    LOADED = "Loaded"
    NOT_LOADED = "NotLoaded"
    # ScalingActive
    FIXED_REPLICAS = "FixedReplicas"
    VALID_METRIC_FOUND = "ValidMetricFound"
    AUTOSCALER_PENDING = "AutoscalerPending"
    AUTOSCALER_FAILED = "AutoscalerFailed"
    FAILED_GET_EXTERNAL_METRIC = "FailedGetExternalMetric"
    FAILED_GET_SCALE = "FailedGetScale"
    FAILED_UPDATE_SCALE = "FailedUpdateScale"
    SCALING_DISABLED = "ScalingDisabled"
    # RolloutBlocked
    NOT_BLOCKED = "NotBlocked"
    NO_GPU_FOR_SURGE = "NoGPUForSurge"
    NO_ROOM_FOR_SURGE = "NoRoomForSurge"
    NO_QUOTA_FOR_SURGE = "NoQuotaForSurge"
    NO_VOLUME_FOR_SURGE = "NoVolumeForSurge"
    SURGE_GATED = "SurgeGated"
    SURGE_REFUSED = "SurgeRefused"
    NEW_POD_FAILS = "NewPodFails"
    WENT_IN_PLACE = "WentInPlace"
    # MemoryFits
    NOT_YET_KNOWN = "NotYetKnown"
    FITS = "Fits"
    DOES_NOT_FIT = "DoesNotFit"
    # AdaptersReady
    NO_ADAPTERS = "NoAdapters"
    ADAPTERS_LOADED = "AdaptersLoaded"
    ADAPTERS_LOADING = "AdaptersLoading"
    ADAPTER_FAILED = "AdapterFailed"


ConditionState = tuple[str, Reason, str]
"""Status (True, False or Unknown), reason and message of a condition."""


class AdapterState(StrEnum):
    """The state of an adapter in a replica."""

    PENDING = "Pending"
    FETCHING = "Fetching"
    LOADING = "Loading"
    LOADED = "Loaded"
    FAILED = "Failed"


class LoadingPhase(StrEnum):
    """The phase of the replica that has progressed furthest.

    Failed: a container of the pod has ended with an error, or cannot be started, and is started again after a pause.
    """

    PENDING = "Pending"
    FAILED = "Failed"
    PULLING = "Pulling"
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    WARMUP = "Warmup"
    NOT_READY = "NotReady"
    SERVING = "Serving"
    SUSPENDED = "Suspended"
