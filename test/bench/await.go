package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A failure is what the functions of this package panic with when a step fails. It ends
// the part: runIn recovers it.
type failure struct{ error }

// check fails unless err is nil.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// fail fails with an error in the format of [fmt.Errorf].
func fail(format string, args ...any) { check(fmt.Errorf(format, args...)) }

// must returns v. It fails unless err is nil.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// caught runs f, and returns the error with which f fails.
func caught(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// within runs a step. If it fails, within adds the step's name to the error.
func within(name string, step func()) {
	if err := caught(step); err != nil {
		fail("%s: %w", name, err)
	}
}

// beside runs f, and other meanwhile in a goroutine. It waits for both, and fails if one
// of them fails.
func beside(f, other func()) {
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() { failed = caught(other) })
	err := caught(f)
	wg.Wait()
	check(errors.Join(err, failed))
}

// readyTime limits the wait until something is ready.
const readyTime = 60 * time.Second

// A stopError makes await fail at once.
type stopError struct{ error }

func stop(err error) error { return stopError{err} }

// await repeats ask until it returns no error. After readyTime, await fails with the last
// error.
func await(ctx context.Context, ask func() error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		err := ask()
		var final stopError
		if errors.As(err, &final) {
			check(err)
		}
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			check(errors.Join(ctx.Err(), err))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
