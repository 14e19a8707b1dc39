// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/conch-serving/conch/internal/triton/trial"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/merging"
)

// scratchPartition is the server that merge groups are verified on. It lives no longer than that takes.
const scratchPartition = "conch-scratch"

// NewGroups makes the book of merge groups, which are verified on servers of its own, of the same kind as those that serve.
func NewGroups(o Options) *merging.Book {
	dir, kind := filepath.Join(o.Config.State, "merging"), o.Config.Driver.Kind
	options := merging.Options{
		Dir: dir, Clock: control.SystemClock(), Open: func(f repo.File) (io.ReadCloser, error) {
			file, err := o.Store.Open(f)
			if err != nil {
				return nil, err
			}
			return struct {
				io.Reader
				io.Closer
			}{io.NewSectionReader(file, 0, f.Size), file}, nil
		},
		Unable: "a group is verified on a server that conch starts; with driver " + kind + " it starts none that runs ONNX graphs: tritonctl merge verifies on a Triton of yours",
	}
	if kind == config.DriverProcess {
		options.Start = func(ctx context.Context) (merging.Scratch, error) {
			return startScratch(ctx, o.Servers.Driver, o.Node, o.cordoned, dir)
		}
	}
	return merging.New(options)
}

// scratch is a server for trials alone.
type scratch struct {
	*trial.Server
	server driver.Server
	dir    string
}

// startScratch starts one on a GPU that may take something new, if the node has GPUs.
func startScratch(ctx context.Context, d driver.Driver, node *policy.Node, cordoned func(gpu string) bool, within string) (merging.Scratch, error) {
	part := &policy.Partition{Id: scratchPartition, Node: node.GetName(), ThreadPercentage: 100}
	var gpu *policy.GPU
	for _, g := range node.GetGpus() {
		if !g.GetUnavailable() && !cordoned(g.GetId()) {
			gpu, part.Gpus = g, []string{g.GetId()}
			break
		}
	}
	if gpu == nil && len(node.GetGpus()) > 0 {
		return nil, errors.New("every GPU is unavailable, cordoned or drained")
	}
	dir, err := os.MkdirTemp(within, "scratch-")
	if err != nil {
		return nil, err
	}
	// A conch that finds this server, because this one was killed, removes the
	// directory above its repository with it, as with every server.
	models := filepath.Join(dir, "repository")
	if err := os.Mkdir(models, 0o755); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	run, err := d.Start(ctx, driver.Spec{Partition: part, GPU: gpu, Hash: d.Hash(part, gpu), RepositoryDir: models, Untimed: true})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	t, err := trial.Open(run.Endpoint().GRPC, models)
	if err != nil {
		return nil, errors.Join(err, run.Stop(ctx), os.RemoveAll(dir))
	}
	return &scratch{t, run, dir}, nil
}

// Name says which server it is, in a manifest that outlives it.
func (s *scratch) Name() string { return "a scratch server of conch" }

// Close ends the server and removes what it had.
func (s *scratch) Close(ctx context.Context) error {
	return errors.Join(s.Server.Close(), s.server.Stop(ctx), os.RemoveAll(s.dir))
}
