// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package control is the plan way from end to end: it watches what the request
// way reports, asks a planner for a plan, has the plan judged, compared and
// applied, and writes down what happened. loop.go is a plan, top-down, in one
// file; triggers.go says when it is walked; turn.go lets one walk it at a time.
//
//	snapshot  the world as a policy sees it
//	planner   proposes plans: the policy, or the mirror of attached servers
//	orders    what operators declared and a restart does not undo
//	events    author, time and reason of what happened
//
// look.go returns the state of this package; sidecar/admin makes of it the answers to
// operators.
package control
