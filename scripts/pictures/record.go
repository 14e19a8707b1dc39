// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
)

// The terminal.
const (
	columns, rows = 92, 22
	period        = 500 * time.Millisecond
)

var (
	foreground = color.RGBA{0xe8, 0xec, 0xf0, 0xff}
	background = color.RGBA{0x14, 0x18, 0x1d, 0xff}
)

// step is what happens at a time after the start: keys are pressed, or something is done beside.
type step struct {
	at   time.Duration
	keys string
	do   func() error
}

// frame is what the terminal shows at one moment.
type frame [rows][columns]uv.Cell

// record runs a command in a terminal and gives what it shows every period between two times after its start.
func record(ctx context.Context, command *exec.Cmd, steps []step, from, to time.Duration) (frames []frame, err error) {
	screen := vt.NewEmulator(columns, rows)
	screen.SetDefaultForegroundColor(foreground)
	screen.SetDefaultBackgroundColor(background)
	command.Env = append(os.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor")
	keyboard, err := pty.StartWithSize(command, &pty.Winsize{Cols: columns, Rows: rows})
	if err != nil {
		return nil, fmt.Errorf("%s in a terminal: %w", command, err)
	}
	var mu sync.Mutex // of screen
	var beside sync.WaitGroup
	defer func() {
		_, _ = keyboard.WriteString("\x03")
		// The pipe is closed, and not the screen: a screen may not be closed beside a Read.
		answers, _ := screen.InputPipe().(io.Closer)
		err = errors.Join(err, command.Wait(), answers.Close(), keyboard.Close())
		beside.Wait()
	}()
	beside.Go(func() { // what the program draws
		buffer := make([]byte, 32<<10)
		for {
			n, err := keyboard.Read(buffer)
			mu.Lock()
			_, _ = screen.Write(buffer[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	beside.Go(func() { _, _ = io.Copy(keyboard, screen) }) // what the terminal answers, such as its background's colour

	begun := time.Now()
	for at := from; at < to; at += period {
		for len(steps) > 0 && steps[0].at <= at {
			if err := sleepUntil(ctx, begun.Add(steps[0].at)); err != nil {
				return nil, err
			}
			if _, err := keyboard.WriteString(steps[0].keys); err != nil {
				return nil, err
			}
			if steps[0].do != nil {
				if err := steps[0].do(); err != nil {
					return nil, err
				}
			}
			steps = steps[1:]
		}
		if err := sleepUntil(ctx, begun.Add(at)); err != nil {
			return nil, err
		}
		mu.Lock()
		frames = append(frames, see(screen))
		mu.Unlock()
	}
	return frames, nil
}

func sleepUntil(ctx context.Context, when time.Time) error {
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func see(screen *vt.Emulator) (f frame) {
	for y := range rows {
		for x := range columns {
			if c := screen.CellAt(x, y); c != nil {
				f[y][x] = *c
			}
		}
	}
	return f
}
