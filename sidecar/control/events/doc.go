// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package events is what happened on the plan way: who, when, why. The log keeps
// events across restarts and lets readers follow it.
package events
