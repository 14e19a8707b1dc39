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

// A load that takes longer than stubPatience has the model's processes looked at
// that often; when there was one and there has been none for stubsGone looks, the
// load never ends.
const (
	stubPatience = time.Second
	stubsGone    = 3
)

// whileModelLives is ctx until the processes that a load has started for its
// model have died. Triton waits for the first word of a python process without
// looking whether the process lives. Models of other backends have none.
func (s *processServer) whileModelLives(ctx context.Context, model string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	python, unpacks := inPython(s.spec.RepositoryDir, model)
	if !python {
		return ctx, func() { cancel(nil) }
	}
	living, dead := modelProcesses(s.ServerPID(), s.spec.RepositoryDir, model)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		seen := false
		for missed := 0; missed < stubsGone; {
			if !sleep(ctx, stubPatience) {
				return
			}
			livingNow, deadNow := modelProcesses(s.ServerPID(), s.spec.RepositoryDir, model)
			lives := newer(livingNow, living)
			// Whose a dead one was is not known: where this model's may be long in coming it
			// may well be another's.
			seen = seen || lives || !unpacks && newer(deadNow, dead)
			if missed++; lives || !seen {
				missed = 0
			}
		}
		cancel(errModelDied)
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// inPython reads off a model's configuration whether the python backend runs it,
// and whether that unpacks an environment first, which may take minutes.
func inPython(directory, model string) (python, unpacks bool) {
	text, err := os.ReadFile(filepath.Join(directory, model, "config.pbtxt"))
	if err != nil {
		return false, false
	}
	c := &tritonpb.ModelConfig{}
	if (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, c) != nil {
		return false, false
	}
	_, unpacks = c.GetParameters()["EXECUTION_ENV_PATH"]
	return c.GetBackend() == "python", unpacks
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
