// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package names resolves names that clients ask for and that no server has a model
// of. A route table has such names beside its models. For each of them a
// [Resolver] chooses the model that serves a request, and converts request and
// answer. An [App] is one (INFaaS: variants, chosen by accuracy and latency). A
// [Chooser] decides which variant a request gets. It is pure: the simulator uses it too.
package names
