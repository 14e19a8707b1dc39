// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package names resolves what clients ask for that is no model of a server: a
// route table has such names beside its models, and for each a [Resolver] chooses
// the model that serves a request and turns request and answer. An [App] is one
// (INFaaS: variants, chosen by accuracy and latency), an [Alias] another (a
// second name for a model). Which variant a request gets is decided by a [Chooser],
// which is pure: the simulator uses it too.
package names
