// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package control is the plan way from end to end: it watches what the request
// way reports, asks a planner for a plan, has the plan judged, compared and
// applied, and writes down what happened. loop.go is a plan, top-down, in one
// file; triggers.go says when it is walked; turn.go lets one walk it at a time.
//
//	snapshot  the world as a policy sees it
//	planner   who proposes: the policy, or the mirror of servers that others run
//	orders    what operators declared and a restart does not undo
//	events    who, when, why
//
// look.go is what there is to see, in control's own words; sidecar/admin makes of it
// what operators are shown.
package control
