// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// connection is a client's only one, and takes little memory itself.
type connection interface {
	// infer sends a request of payloads[0] and returns once it is answered.
	infer(context.Context) error
	close()
}

// connect opens a connection to conch.
func connect(ctx context.Context, protocol string, to *rig.Conch) (connection, error) {
	if protocol == "grpc" {
		c, err := triton.Dial(to.GRPC, grpc.WithReadBufferSize(1<<10), grpc.WithWriteBufferSize(1<<10))
		return grpcConnection{c}, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.HTTP)
	return httpConnection{c}, err
}

type grpcConnection struct{ client *triton.Client }

func (c grpcConnection) infer(ctx context.Context) error {
	p := payloads[0]
	_, err := c.client.Stub.ModelInfer(ctx, &tritonpb.ModelInferRequest{
		ModelName: p.name, Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, int64(p.elements)}}},
		RawInputContents: [][]byte{make([]byte, 4*p.elements)},
	})
	return err
}

func (c grpcConnection) close() { _ = c.client.Close() }

type httpConnection struct{ net.Conn }

func (c httpConnection) infer(context.Context) error {
	p := payloads[0]
	header := fmt.Sprintf(`{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`,
		p.elements, 4*p.elements)
	_, err := fmt.Fprintf(c, "POST /v2/models/%s/infer HTTP/1.1\r\nHost: conch\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s%s",
		p.name, len(header), len(header)+4*p.elements, header, make([]byte, 4*p.elements))
	if err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(c, 2<<10), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP status %d: %s", answer.StatusCode, body)
	}
	return err
}

func (c httpConnection) close() { _ = c.Close() }
