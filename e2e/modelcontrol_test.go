// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// orderAnswer is the result of one order about a model, over either protocol.
type orderAnswer struct{ order, answer string }

// orderEverything asks a server for loads and unloads of all kinds.
func orderEverything(t *testing.T, grpcAddress, httpAddress string) (all []orderAnswer) {
	t.Helper()
	conn, err := grpc.NewClient(grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	stub := tritonpb.NewGRPCInferenceServiceClient(conn)
	number := &tritonpb.ModelRepositoryParameter{ParameterChoice: &tritonpb.ModelRepositoryParameter_Int64Param{Int64Param: 5}}
	for name, r := range map[string]*tritonpb.RepositoryModelLoadRequest{
		"load":                       {ModelName: "fragile"},
		"load of nobody":             {ModelName: "nobody"},
		"load from a repository":     {ModelName: "fragile", RepositoryName: "other"},
		"load with a number":         {ModelName: "fragile", Parameters: map[string]*tritonpb.ModelRepositoryParameter{"config": number}},
		"load with who knows what":   {ModelName: "fragile", Parameters: map[string]*tritonpb.ModelRepositoryParameter{"what": number}},
		"load with a number as file": {ModelName: "fragile", Parameters: map[string]*tritonpb.ModelRepositoryParameter{"file:1/model.py": number}},
	} {
		_, err := stub.RepositoryModelLoad(t.Context(), r)
		all = append(all, orderAnswer{name, status.Code(err).String() + ": " + status.Convert(err).Message()})
	}
	for name, r := range map[string]*tritonpb.RepositoryModelUnloadRequest{
		"unload":                   {ModelName: "fragile"},
		"unload of nobody":         {ModelName: "nobody"},
		"unload from a repository": {ModelName: "fragile", RepositoryName: "other"},
		"unload with a number":     {ModelName: "fragile", Parameters: map[string]*tritonpb.ModelRepositoryParameter{"unload_dependents": number}},
		"unload with who knows":    {ModelName: "fragile", Parameters: map[string]*tritonpb.ModelRepositoryParameter{"what": number}},
	} {
		_, err := stub.RepositoryModelUnload(t.Context(), r)
		all = append(all, orderAnswer{name, status.Code(err).String() + ": " + status.Convert(err).Message()})
	}
	for _, path := range []string{"models/fragile/load", "models/fragile/unload", "models/nobody/load", "models/nobody/unload", "other/models/fragile/load"} {
		r, err := http.Post("http://"+httpAddress+"/v2/repository/"+path, "application/json", strings.NewReader("{}")) //nolint:noctx // it is over with the test
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		all = append(all, orderAnswer{"HTTP " + path, r.Status + " " + string(body)})
	}
	return all
}

// Unless conch.yaml says otherwise clients load and unload nothing, and hear what a real server in mode none says.
func TestClientsOrderNothingByDefault(t *testing.T) {
	t.Parallel()
	dir := repository(t, "fragile")
	server, err := rig.StartServer(t.Context(), rig.ServerOptions{
		Server: setting(t, "CONCH_TRITONSERVER"), Repository: dir, Flags: []string{"--model-control-mode=none"},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	c := serve(t, rig.ConchOptions{Repository: dir, GPUs: 1})
	require.ElementsMatch(t, orderEverything(t, server.GRPC, server.HTTP), orderEverything(t, c.GRPC, c.HTTP))
	_, err = triton(t, c).ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "nobody"})
	require.ErrorContains(t, err, "'nobody' is not found", "it is asked for, and not loaded for that")
}
