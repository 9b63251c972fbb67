// Package refclient is a small AHP client for tests and load tools. It keeps
// every frame unchanged, so that a test can compare bytes, and it can send
// frames that no correct client would send.
//
// # Frames and calls
//
// A [Client] reads frames in one goroutine, in sequence. Each frame is recorded
// first, then passed to Options.OnFrame, then dispatched: a response goes to the
// [Client.Call] that waits for it, a host's request to its [Handler]. So when
// Call returns, [Client.Frames] contains everything that the host sent before
// the response.
//
// Calls are numbered 1, 2, 3… Frames sent with [Client.SendRaw] are not
// inspected; their responses are only recorded.
//
// # Ends
//
// A client ends when the host closes the connection, when reading fails, or
// with [Client.Close] and [Client.Abort]. [Client.Done] reports the end, and
// [Client.CloseStatus] the content of the close frame. Calls and waits in
// progress then fail with [ErrClosed].
//
// All methods are safe for concurrent use.
package refclient
