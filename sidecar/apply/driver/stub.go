// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

var errModelDied = errors.New("the process of the model died, for which the server waits for ever")

// A load has the model's processes looked at every stubPatience; when one was
// seen alive and there has been none for ProcessOptions.ModelGone, the load never
// ends. A server is lost by that judgement, with all its models, so it is late
// rather than wrong: a busy machine may take seconds to pass on why a process
// ended. A process that comes and dies between two looks is left to the load's
// timeout.
const stubPatience = 250 * time.Millisecond

// whileModelLives is ctx until the processes that a load has started for its
// model have died. Triton waits for the first word of a python process without
// looking whether the process lives. Models of other backends have none.
func (s *processServer) whileModelLives(ctx context.Context, model string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if !inPython(s.spec.RepositoryDir, model) {
		return ctx, func() { cancel(nil) }
	}
	before := modelProcesses(s.ServerPID(), s.spec.RepositoryDir, model)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		seen, gone := false, int(s.driver.o.ModelGone/stubPatience)
		for missed := 0; missed < max(2, gone); {
			if !sleep(ctx, stubPatience) {
				return
			}
			lives := newer(modelProcesses(s.ServerPID(), s.spec.RepositoryDir, model), before)
			seen = seen || lives
			if missed++; lives || !seen {
				missed = 0
			}
		}
		cancel(errModelDied)
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// inPython reads off a model's configuration whether the python backend runs it.
func inPython(directory, model string) bool {
	text, err := os.ReadFile(filepath.Join(directory, model, "config.pbtxt"))
	if err != nil {
		return false
	}
	c := &tritonpb.ModelConfig{}
	return (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, c) == nil && c.GetBackend() == "python"
}

// newer reports that a set of processes has one that another has not.
func newer(now, before map[int]bool) bool {
	for pid := range now {
		if !before[pid] {
			return true
		}
	}
	return false
}
