/* Stands in for libtorch_cuda.so while _C_cuda is linked, so that the link needs no CUDA build of
 * torch. It carries that library's soname and the functions gnnagg may call from it; it is never
 * installed. At run time `import torch` has loaded the real library, and the loader binds to it by
 * soname. A function missing here is an error of the link, not of a user's first call.
 */
#define STUB(name) \
  int name(void);  \
  int name(void) { return 1; }

STUB(aoti_torch_get_current_cuda_stream)
STUB(aoti_torch_create_cuda_guard)
STUB(aoti_torch_delete_cuda_guard)
STUB(aoti_torch_cuda_guard_set_index)
STUB(aoti_torch_create_cuda_stream_guard)
STUB(aoti_torch_delete_cuda_stream_guard)
