// Package refclient is a small AHP client for tests and load tools. It keeps
// every frame as it came, so that a test can compare bytes, and it can send
// frames that no proper client would.
//
// # Frames and calls
//
// A [Client] reads frames in one goroutine, one after another. Each frame is
// recorded first, then handed to Options.OnFrame, then to whom it concerns: a
// response to the [Client.Call] that waits for it, a request of the host to
// its [Handler]. So when Call returns, everything that the host sent before
// the response is in [Client.Frames].
//
// Calls are numbered 1, 2, 3… Frames sent with [Client.SendRaw] are not
// looked at; their answers are recorded only.
//
// # Ends
//
// A client ends when the host closes the connection, when reading fails, or
// with [Client.Close] and [Client.Abort]. [Client.Done] tells when,
// [Client.CloseStatus] what the close frame said. Calls and waits that are
// under way then fail with [ErrClosed].
//
// All methods are safe for concurrent use.
package refclient
