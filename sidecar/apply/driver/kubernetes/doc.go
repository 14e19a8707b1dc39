// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubernetes is the driver "kubernetes": each partition is a Pod with one tritonserver on a GPU of some node. The Pod carries in labels and
// annotations what it was started with, so that the next conch finds it and serves without a load. Nodes and GPUs are read from the cluster:
// from the ResourceSlices of a DRA driver, or where there is none from the device plugin's extended resource and the labels of GPU feature
// discovery. Whether a server lives is asked of the server itself, never of the Pod's condition Ready: a kubelet that is down makes that false
// while its Pods serve.
package kubernetes
