// Package must ends a measurement at a step that fails, as [testing.T.Fatal] ends a
// test. Its functions panic with the error, and [Catch] returns it. A goroutine that
// calls them needs a Catch of its own.
package must

import (
	"errors"
	"fmt"
	"sync"
)

// A failure is what the functions of this package panic with.
type failure struct{ error }

// Do fails unless err is nil.
func Do(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Fail fails with an error in the format of [fmt.Errorf].
func Fail(format string, args ...any) { Do(fmt.Errorf(format, args...)) }

// Get returns v. It fails unless err is nil.
func Get[T any](v T, err error) T {
	Do(err)
	return v
}

// Catch runs f, and returns the error with which f fails.
func Catch(f func()) (err error) {
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

// Undo calls undo if the function that defers Undo does not return. The failure, or the
// other panic, goes on.
func Undo(undo func()) {
	if r := recover(); r != nil {
		undo()
		panic(r)
	}
}

// Within runs a step. If it fails, Within adds the step's name to the error.
func Within(name string, step func()) {
	if err := Catch(step); err != nil {
		Fail("%s: %w", name, err)
	}
}

// Both runs f, and other meanwhile in a goroutine. It waits for both, and fails if one of
// them fails.
func Both(f, other func()) {
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() { failed = Catch(other) })
	err := Catch(f)
	wg.Wait()
	Do(errors.Join(err, failed))
}
