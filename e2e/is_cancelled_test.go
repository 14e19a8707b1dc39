// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// watching is a model that goes on for half a minute, or until it sees that its request is cancelled, which it writes down.
const watching = `import os
import time

import triton_python_backend_utils as pb

FILE = "FILE_"


class TritonPythonModel:
    def execute(self, requests):
        open(FILE + "begun", "w").close()
        for _ in range(3000):
            if requests[0].is_cancelled():
                open(FILE + "cancelled", "w").close()
                break
            time.sleep(0.01)
        answers = []
        for request in requests:
            answer = pb.InferenceResponse([pb.Tensor("OUTPUT0", pb.get_input_tensor_by_name(request, "INPUT0").as_numpy())])
            if DECOUPLED:
                request.get_response_sender().send(answer, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            answers.append(answer)
        return None if DECOUPLED else answers
`

// A model of a real server sees that its caller has disconnected, while the request executes alone or while a decoupled model answers the stream:
// it can stop.
func TestAModelSeesThatItsCallerHasGone(t *testing.T) {
	t.Parallel()
	dir, marks := conformanceModels(t, "slow"), t.TempDir()
	for model, decoupled := range map[string]string{"slow": "False", "flow": "True"} {
		code := strings.NewReplacer("FILE_", filepath.Join(marks, model)+".", "DECOUPLED", decoupled).Replace(watching)
		write(t, dir, model+"/1/model.py", code)
	}
	config, err := os.ReadFile(filepath.Join(dir, "slow", "config.pbtxt"))
	require.NoError(t, err)
	write(t, dir, "flow/config.pbtxt", strings.Replace(string(config), `name: "slow"`, `name: "flow"`, 1)+"\nmodel_transaction_policy { decoupled: true }\n")
	client := triton(t, serve(t, rig.ConchOptions{Repository: dir, GPUs: 1}))
	marked := func(model, mark string) {
		t.Helper()
		require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(marks, model) + "." + mark); return err == nil }, time.Minute, 5*time.Millisecond, "%s %s", model, mark)
	}

	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { _, err := client.ModelInfer(ctx, slowRequest("", 1)); left <- err }()
	marked("slow", "begun")
	leave()
	require.Error(t, <-left)
	marked("slow", "cancelled")

	ctx, leave = context.WithCancel(t.Context())
	defer leave()
	stream, err := client.ModelStreamInfer(ctx)
	require.NoError(t, err)
	request := slowRequest("", 1)
	request.ModelName = "flow"
	require.NoError(t, stream.Send(&tritonpb.ModelInferRequest{ModelName: "flow", Inputs: request.Inputs, RawInputContents: request.RawInputContents}))
	marked("flow", "begun")
	leave()
	marked("flow", "cancelled")
}
