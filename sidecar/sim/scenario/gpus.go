// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// resize leaves the first n GPUs of a snapshot, or adds copies of the last one, and takes away the plan that was made for the others.
func resize(snapshot *policy.Snapshot, n int) error {
	if n < 1 || n > maxCount {
		return fmt.Errorf("%d GPUs; a number from 1 to %d is needed", n, maxCount)
	}
	left := n
	var last *policy.GPU
	var of *policy.Node
	for _, node := range snapshot.GetNodes() {
		node.Gpus = node.GetGpus()[:min(left, len(node.GetGpus()))]
		left -= len(node.GetGpus())
		if k := len(node.GetGpus()); k > 0 {
			last, of = node.GetGpus()[k-1], node
		}
	}
	if last == nil {
		return errors.New("there is no GPU of which another could be a copy")
	}
	for i := range left {
		added := proto.CloneOf(last)
		added.Id = fmt.Sprintf("added%d", i)
		of.Gpus = append(of.Gpus, added)
	}
	snapshot.Current = nil
	return nil
}
