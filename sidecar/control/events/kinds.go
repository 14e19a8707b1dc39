// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package events

import "github.com/conch-serving/conch/sidecar/admin/api"

// Kinds of event.
const (
	Started api.EventKind = "started"
	// TakenOver: servers of the conch before were found running.
	TakenOver     api.EventKind = "servers_taken_over"
	PlanApplied   api.EventKind = "plan_applied"
	PlanProposed  api.EventKind = "plan_proposed"
	PlanHeld      api.EventKind = "plan_held"
	PlanRejected  api.EventKind = "plan_rejected"
	PlanPinned    api.EventKind = "plan_pinned"
	PlanUnpinned  api.EventKind = "plan_unpinned"
	PlanFailed    api.EventKind = "plan_failed"
	ApplyFailed   api.EventKind = "apply_failed"
	PolicyChanged api.EventKind = "policy_changed"
	PolicyState   api.EventKind = "policy_state"
	PartitionUp   api.EventKind = "partition_up"
	PartitionDown api.EventKind = "partition_down"
	// PartitionRestarted: an operator ordered a restart of its server.
	PartitionRestarted api.EventKind = "partition_restarted"
	GPUCordoned        api.EventKind = "gpu_cordoned"
	GPUDrained         api.EventKind = "gpu_drained"
	GPUUncordoned      api.EventKind = "gpu_uncordoned"
	// NodesChanged: nodes of the cluster, or their GPUs, are others than before.
	NodesChanged api.EventKind = "nodes_changed"
	// MPSFault: a client of MPS made a GPU fault, and its neighbours are started again.
	MPSFault api.EventKind = "mps_fault"
	// Degraded: a model fails to load somewhere, a merge group fails there or could not be made, the API server does not answer; Recovered: it no longer does.
	Degraded        api.EventKind = "degraded"
	Recovered       api.EventKind = "recovered"
	Repository      api.EventKind = "repository_imported"
	ModelLoaded     api.EventKind = "model_loaded"
	ModelUnloaded   api.EventKind = "model_unloaded"
	ModelInterfered api.EventKind = "model_interfered"
	// VariantWanted: a client asked an app for a variant that does not run.
	VariantWanted api.EventKind = "variant_wanted"
	// ModelsEstimated: models of the repository were estimated from their graphs.
	ModelsEstimated api.EventKind = "models_estimated"
	// DeviceCalibrated: a type of device was measured, and estimates are made with the result.
	DeviceCalibrated api.EventKind = "device_calibrated"
	// EstimateOff: a model takes more, or less, than its estimate and the estimate's bound.
	EstimateOff api.EventKind = "estimate_off"
	// Merging is a step of making a merge group; Merged: it was made and verified; MergeFailed: it cannot be, or is not what its members are.
	Merging     api.EventKind = "merging"
	Merged      api.EventKind = "merged"
	MergeFailed api.EventKind = "merge_failed"
	// GroupFaulted: executions of a merge group that serves fail, so that its members serve until it is tried again.
	GroupFaulted api.EventKind = "merge_group_faulted"
	// PlaceEjected: executions of a model fail on a partition, so that its requests go to its other places; PlaceRestored: they succeed again.
	PlaceEjected  api.EventKind = "place_ejected"
	PlaceRestored api.EventKind = "place_restored"
	Reloaded      api.EventKind = "configuration_reloaded"
	// ReloadRefused: the configuration could not be read again, or was refused: the one before stays in force.
	ReloadRefused api.EventKind = "reload_refused"
	// ModelUnknown: conch.yaml names models that the repository does not have.
	ModelUnknown api.EventKind = "model_unknown"
	Stopping     api.EventKind = "stopping"
	// Handover: an attached server's configuration was changed, or why not.
	Handover api.EventKind = "handover"
	// Released: attached servers were given back, or taken again.
	Released api.EventKind = "released"
)

// Kinds lists every kind of event.
func Kinds() []api.EventKind {
	return []api.EventKind{
		Started, TakenOver, PlanApplied, PlanProposed, PlanHeld, PlanRejected, PlanPinned, PlanUnpinned, PlanFailed, ApplyFailed,
		PolicyChanged, PolicyState, PartitionUp, PartitionDown, PartitionRestarted, GPUCordoned, GPUDrained, GPUUncordoned,
		NodesChanged, MPSFault, Degraded, Recovered, Repository, ModelLoaded, ModelUnloaded, ModelInterfered, VariantWanted,
		ModelsEstimated, DeviceCalibrated, EstimateOff, Merging, Merged, MergeFailed, GroupFaulted, PlaceEjected,
		PlaceRestored, Reloaded, ReloadRefused, ModelUnknown, Stopping, Handover, Released,
	}
}

// Grave reports whether an operator should look at events of a kind.
func Grave(kind api.EventKind) bool {
	switch kind {
	case PlanRejected, PlanHeld, PlanFailed, ApplyFailed, PartitionDown, MPSFault, Degraded, EstimateOff, MergeFailed, GroupFaulted, PlaceEjected, ReloadRefused, ModelUnknown:
		return true
	}
	return false
}
