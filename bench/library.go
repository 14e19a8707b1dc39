// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	requests "github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// libraryPeer passes each request on with grpc-go and net/http and does nothing else: what a proxy that ends the protocol costs before it
// has a line of its own. It takes the server's addresses, prints its own two, and ends with its standard input.
func libraryPeer() *cobra.Command {
	return &cobra.Command{
		Use: "library GRPC HTTP", Short: "A proxy of nothing but libraries for measurements", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			defer runtime.KeepAlive(slack())
			to, err := grpc.NewClient(args[0], grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDefaultCallOptions(grpc.ForceCodecV2(requests.Codec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, to.Close()) }()
			s := grpc.NewServer(grpc.ForceServerCodecV2(requests.Codec{}), grpc.MaxRecvMsgSize(math.MaxInt32))
			s.RegisterService(passOn(to), nil)
			h := &http.Server{Handler: fetch("http://" + args[1])}
			end := func() { s.Stop(); _ = h.Close() }
			defer end()
			listen := func() (net.Listener, error) { return (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", "127.0.0.1:0") }
			gl, err := listen()
			if err != nil {
				return err
			}
			hl, err := listen()
			if err != nil {
				return err
			}
			fmt.Println(gl.Addr(), hl.Addr())
			done := make(chan error, 2)
			go func() { done <- s.Serve(gl) }()
			go func() { done <- h.Serve(hl) }()
			_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the process that measures
			end()
			err = errors.Join(<-done, <-done)
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		},
	}
}

// passOn is Triton's ModelInfer, which answers with what the other side answers. Buffers are those of the library: nothing is decoded.
func passOn(to *grpc.ClientConn) *grpc.ServiceDesc {
	handle := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request, answer requests.Frame
		if err := decode(&request); err != nil {
			return nil, err
		}
		if err := to.Invoke(ctx, tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, &request, &answer); err != nil {
			return nil, err
		}
		return &answer, nil
	}
	return &grpc.ServiceDesc{
		ServiceName: tritonpb.GRPCInferenceService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ModelInfer", Handler: handle}},
	}
}

// fetch answers a request with what the other side answers. httputil's ReverseProxy would stream the body, and breaks off where the server
// answers before the end of the request has reached it.
func fetch(origin string) http.HandlerFunc {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	return func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, max(0, r.ContentLength))
		_, err := io.ReadFull(r.Body, body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request, err := http.NewRequestWithContext(r.Context(), r.Method, origin+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request.Header = r.Header.Clone()
		answer, err := client.Do(request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = answer.Body.Close() }() // it was read to its end, or its reader has gone
		maps.Copy(w.Header(), answer.Header)
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
	}
}
