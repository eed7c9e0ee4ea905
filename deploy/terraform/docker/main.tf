# A pool of agents, a network and fixed addresses on the Docker engine of this machine.
#
#   evenfall plan deploy FILE --out DIR --key-file /etc/evenfall/evenfall.key
#   deploy/docker/build.sh
#   terraform apply -var-file=DIR/terraform.tfvars.json -var=settings_dir=DIR -var=key_file=KEY

terraform {
  required_version = ">= 1.5"
  required_providers {
    docker = {
      source  = "kreuzwerker/docker"
      version = "~> 3.0"
    }
  }
}

resource "docker_network" "pool" {
  name = var.name
  ipam_config {
    subnet = var.subnet
  }
}

# Results of the plan and of the feed stay when their containers are removed.
resource "docker_volume" "state" {
  for_each = toset([for machine in var.machines : machine.name])
  name     = "${each.key}-state"
}

# The network of a machine, which its agent and its feed share. A network ends with the container that owns it, so
# the owner is a container that does nothing and never ends: an agent that is started again cuts no feed off.
resource "docker_container" "machine" {
  for_each = { for machine in var.machines : machine.name => machine }

  name    = "${each.key}-network"
  image   = var.pause_image
  restart = "unless-stopped"

  networks_advanced {
    name         = docker_network.pool.name
    ipv4_address = each.value.address
  }
}

resource "docker_container" "agent" {
  for_each = { for machine in var.machines : machine.name => machine }

  name         = each.key
  image        = var.image == "" ? "evenfall:local" : var.image
  command      = ["run", "agent", "--name", each.key, "--config", "/etc/evenfall/agents.toml"]
  network_mode = "container:${docker_container.machine[each.key].id}"
  env          = ["HEALTH_HTTP=${each.value.address}:9180"]
  restart      = "on-failure"

  # The first agent gives out the runs that the manager keeps there.
  volumes {
    volume_name    = docker_volume.state[each.key].name
    container_path = "/var/lib/evenfall"
  }
  volumes {
    host_path      = abspath("${var.settings_dir}/agents.toml")
    container_path = "/etc/evenfall/agents.toml"
    read_only      = true
  }
  volumes {
    host_path      = abspath(var.key_file)
    container_path = "/etc/evenfall/evenfall.key"
    read_only      = true
  }
}

# The manager, in the network of the first machine: carries out the experiment once.
resource "docker_container" "plan" {
  name         = "${var.name}-plan"
  image        = var.image == "" ? "evenfall:local" : var.image
  command      = ["plan", "run", "/etc/evenfall/plan.toml", "--dir", "/var/lib/evenfall/plan"]
  network_mode = "container:${docker_container.machine[var.machines[0].name].id}"
  must_run     = false

  volumes {
    volume_name    = docker_volume.state[var.machines[0].name].name
    container_path = "/var/lib/evenfall"
  }
  dynamic "volumes" {
    for_each = ["agents.toml", "plan.toml"]
    content {
      host_path      = abspath("${var.settings_dir}/${volumes.value}")
      container_path = "/etc/evenfall/${volumes.value}"
      read_only      = true
    }
  }
  volumes {
    host_path      = abspath(var.key_file)
    container_path = "/etc/evenfall/evenfall.key"
    read_only      = true
  }
}

# The feed, every role in the network of its machine.
resource "docker_container" "feed" {
  for_each = { for machine in var.machines : machine.name => machine if var.start_feed }

  name         = "${each.key}-feed"
  image        = var.image == "" ? "evenfall:local" : var.image
  network_mode = "container:${docker_container.machine[each.key].id}"
  env          = ["HEALTH_HTTP=${each.value.address}:9181"]
  restart      = "on-failure"
  command = [
    "run", each.value.feed_role, "--name", each.value.feed_name,
    "--config", "/etc/evenfall/feed.toml", "--set", "run.dir=/var/lib/evenfall/run",
  ]

  volumes {
    volume_name    = docker_volume.state[each.key].name
    container_path = "/var/lib/evenfall"
  }
  volumes {
    host_path      = abspath("${var.settings_dir}/feed.toml")
    container_path = "/etc/evenfall/feed.toml"
    read_only      = true
  }
  volumes {
    host_path      = abspath(var.key_file)
    container_path = "/etc/evenfall/evenfall.key"
    read_only      = true
  }
}

output "agents" {
  value = [for machine in var.machines : "${machine.address}:9400"]
}
