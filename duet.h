// All of duet for users: what is installed is this header and those that it includes.
#pragma once

// Tensors, devices, random numbers, files.
#include "lib/base/sha256.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/io/checkpoint.h"
#include "lib/io/safetensors.h"
#include "lib/random.h"
#include "lib/shape.h"
#include "lib/tensor.h"

// Gradients, operators, networks, optimizers; whole steps as CUDA graphs.
#include "lib/autograd/check_finite.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/variable.h"
#include "lib/backend/step_graph.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/module.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/lr_scheduler.h"
#include "lib/optim/sgd.h"

// Data and the order in which it is read.
#include "lib/data/dataset.h"
#include "lib/data/images/drawn_images.h"
#include "lib/data/images/image_file.h"
#include "lib/data/images/image_folder.h"
#include "lib/data/loader.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/data/mnist/mnist.h"
#include "lib/data/partitioner.h"
#include "samplers/batch.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "samplers/random.h"
#include "samplers/sequential.h"

// DataParallel.
#include "dp/data_parallel.h"

// DistributedDataParallel, and how ranks are started and meet.
#include "ddp/comm_hook.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/gloo/load.h"
#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/nccl/load.h"
#include "ddp/rank_threads.h"
#include "ddp/sharded_update.h"
#include "ddp/store/file_store.h"
#include "ddp/store/tcp_store.h"
#include "ddp/tutorial/average_gradients.h"
#include "ddp/tutorial/ring.h"
